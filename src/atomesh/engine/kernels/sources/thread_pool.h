#pragma once

#include <cstdint>

namespace atomesh {

// Calls work(context, i) once for each i of 0 … pieces − 1, on the calling thread and up to threads − 1 others, and
// returns when all are done. Who takes which piece is left to chance: a piece's result must not depend on it.
// The caller never waits for a thread that has not begun. Several callers take turns.
void run_in_parallel(int32_t threads, int64_t pieces, void (*work)(void*, int64_t), void* context);

template <typename Work>
void run_in_parallel(int32_t threads, int64_t pieces, Work&& work) {
    run_in_parallel(
        threads, pieces, [](void* context, int64_t piece) { (*static_cast<Work*>(context))(piece); }, &work);
}

}  // namespace atomesh
