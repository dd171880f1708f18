#pragma once

// Keys as they lie in the pool, a token's dimensions side by side, to tiles [dim][kTileTokens] of floats.

#include "attention_tile.h"

namespace atomesh {

#if defined(__AVX512F__)

// 16 × 16 of 32 bits: by fours within each quarter of a register, then the quarters.
inline void transpose(__m512i rows[16]) {
    __m512i pairs[16];
    for (int i = 0; i < 16; i += 2) {
        pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    __m512i fours[16];
    for (int i = 0; i < 16; i += 4) {
        fours[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
        fours[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
        fours[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
        fours[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
    }
    for (int i = 0; i < 4; ++i) {
        const __m512i even_top = _mm512_shuffle_i32x4(fours[i], fours[i + 4], 0x88);
        const __m512i odd_top = _mm512_shuffle_i32x4(fours[i], fours[i + 4], 0xdd);
        const __m512i even_bottom = _mm512_shuffle_i32x4(fours[i + 8], fours[i + 12], 0x88);
        const __m512i odd_bottom = _mm512_shuffle_i32x4(fours[i + 8], fours[i + 12], 0xdd);
        rows[i] = _mm512_shuffle_i32x4(even_top, even_bottom, 0x88);
        rows[i + 4] = _mm512_shuffle_i32x4(odd_top, odd_bottom, 0x88);
        rows[i + 8] = _mm512_shuffle_i32x4(even_top, even_bottom, 0xdd);
        rows[i + 12] = _mm512_shuffle_i32x4(odd_top, odd_bottom, 0xdd);
    }
}

inline void transpose_keys(const float* keys, int dim, float* tile) {
    for (int d = 0; d < dim; d += 16) {
        __m512i rows[16];
        for (int t = 0; t < 16; ++t) rows[t] = _mm512_loadu_si512(keys + t * dim + d);
        transpose(rows);
        for (int i = 0; i < 16; ++i) _mm512_storeu_si512(tile + (d + i) * 16, rows[i]);
    }
}

// Pairs of dimensions move as one; the last 16 of an odd number of sixteens are loaded alone.
inline void transpose_keys(const Bfloat16* keys, int dim, float* tile) {
    const __m512i high = _mm512_set1_epi32(static_cast<int32_t>(0xffff0000u));
    for (int d = 0; d < dim; d += 32) {
        const int pairs = std::min(16, (dim - d) / 2);
        const __mmask16 there = static_cast<__mmask16>((1u << pairs) - 1);
        __m512i rows[16];
        for (int t = 0; t < 16; ++t) rows[t] = _mm512_maskz_loadu_epi32(there, keys + t * dim + d);
        transpose(rows);
        for (int i = 0; i < pairs; ++i) {
            float* pair = tile + (d + 2 * i) * 16;
            _mm512_storeu_si512(pair, _mm512_slli_epi32(rows[i], 16));
            _mm512_storeu_si512(pair + 16, _mm512_and_si512(rows[i], high));
        }
    }
}

#else

template <typename T>
inline void transpose_keys(const T* keys, int dim, float* tile) {
    for (int d = 0; d < dim; ++d)
        for (int t = 0; t < kTileTokens; ++t) tile[d * kTileTokens + t] = widen(keys[t * dim + d]);
}

#endif

}  // namespace atomesh
