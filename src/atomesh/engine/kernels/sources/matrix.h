#pragma once

// A weight matrix W [outputs, inputs], packed for y = x Wᵀ. packed_matrix.py holds the same structure.
//
// Outputs lie in panels of 32, two groups of lanes; what is beyond the last output is zero. A panel holds all inputs:
//   bfloats: for each pair of inputs, 32 outputs × 2 numbers;
//   bytes:   the scales of each group of inputs (32 halves), then for each four inputs, 32 outputs × 4 codes; a weight
//            is scale · (code − 128);
//   nibbles: scales and minima of each group (32 halves each), then for each eight inputs, 32 outputs × 4 bytes, the
//            first four inputs in the low nibbles, the others in the high; a weight is scale · code + minimum.

#include <cstddef>
#include <cstdint>

namespace atomesh {

constexpr int kPanel = 32;

enum Format : int32_t { kBfloats = 0, kBytes = 1, kNibbles = 2 };

struct Matrix {
    int64_t outputs;
    int64_t inputs;
    int64_t group;  // inputs that share a scale; a multiple of 8
    int64_t format;
    uint8_t* data;
    const float* bias;  // [outputs], or null

    int64_t panels() const { return (outputs + kPanel - 1) / kPanel; }
    int64_t groups() const { return (inputs + group - 1) / group; }
    // As many as the panels hold: what is beyond `inputs` meets activations that are zero.
    int64_t padded_inputs() const { return format == kBfloats ? (inputs + 1) / 2 * 2 : groups() * group; }
    int64_t scale_bytes() const {
        return format == kBfloats ? 0 : groups() * kPanel * (format == kNibbles ? 4 : 2);
    }
    int64_t code_bytes() const {
        const int64_t count = padded_inputs() * kPanel;
        return format == kBfloats ? count * 2 : format == kBytes ? count : count / 2;
    }
    int64_t panel_bytes() const { return scale_bytes() + code_bytes(); }
    uint8_t* panel(int64_t index) const { return data + index * panel_bytes(); }
};

}  // namespace atomesh
