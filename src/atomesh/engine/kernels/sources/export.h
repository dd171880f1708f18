#pragma once

// What Python may call: plain C names, and nothing else leaves the object.
#define ATOMESH_EXPORT extern "C" __attribute__((visibility("default")))
