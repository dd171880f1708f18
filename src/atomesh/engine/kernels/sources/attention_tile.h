#pragma once

// The arithmetic of attention over at most kSplit tokens, in float32 whatever the pool holds. Every sum has one order
// that depends on no number of rows: scores over dimensions, values over tokens, both one by one.

#include <algorithm>

#include "attention_lanes.h"

namespace atomesh {

constexpr int kSplit = 256;       // tokens, from multiples of it: partial results are those of splits
constexpr int kTileTokens = 16;   // keys are transposed by so many
constexpr int kSplitTiles = kSplit / kTileTokens;
#if defined(__AVX512F__)
constexpr int kRows = 6;          // query rows that share a load of a key or a value
constexpr int kWide = 4;          // registers of tokens, or of dimensions, beside them
#else
constexpr int kRows = 4;
constexpr int kWide = 1;
#endif
constexpr int kScoreStride = kSplit + (kWide - 1) * kTileTokens;  // a row's scores, and what lies behind a last tile
constexpr float kUnseen = -1e30f;

// How scores become exponents of two.
struct Scoring {
    float scale;     // with log₂ e, unless there is a cap
    float cap;       // 0: none
    float cap_scale; // cap · log₂ e
};

// What a row has gathered so far: weights sum · 2^highest, values summed · 2^highest.
struct Gathered {
    float highest = kUnseen;
    float sum = 0.0f;
};

inline float power_of_two(float x) {
    float lanes[kLanes];
    store(lanes, power_of_two(splat(x)));
    return lanes[0];
}

// Factors that bring the gathered and what comes now to one highest exponent.
struct Joint {
    float before, now;
    Gathered gathered;

    Joint() = default;
    Joint(const Gathered& a, const Gathered& b) {
        gathered.highest = std::max(a.highest, b.highest);
        before = power_of_two(a.highest - gathered.highest);
        now = power_of_two(b.highest - gathered.highest);
        const float kept = a.sum * before;
        gathered.sum = __builtin_fmaf(b.sum, now, kept);
    }
};

inline Floats joined(Floats before, float factor, Floats now, float now_factor) {
    return mul_add(now, splat(now_factor), mul(before, splat(factor)));
}

// scores[r][t] of R rows with kWide tiles of transposed keys [dim][16].
template <int R>
inline void score_tiles(const float* query, int dim, const float* keys, float* scores) {
    Floats sums[R][kWide];
    for (auto& row : sums)
        for (auto& sum : row) sum = zero_floats();
    for (int d = 0; d < dim; ++d) {
        Floats key[kWide];
        for (int w = 0; w < kWide; ++w) key[w] = load_floats(keys + (w * dim + d) * kTileTokens);
        for (int r = 0; r < R; ++r) {
            const Floats element = splat(query[r * dim + d]);
            for (int w = 0; w < kWide; ++w) sums[r][w] = mul_add(element, key[w], sums[r][w]);
        }
    }
    for (int r = 0; r < R; ++r)
        for (int w = 0; w < kWide; ++w) store(scores + r * kScoreStride + w * kTileTokens, sums[r][w]);
}

inline Floats exponents(Floats score, const Scoring& scoring) {
    const Floats scaled = mul(score, splat(scoring.scale));
    if (scoring.cap == 0.0f) return scaled;
    // tanh x = 1 − 2 / (2^(2x · log₂ e) + 1), and is 1 long before the power overflows.
    const Floats most = splat(60.0f);
    const Floats bounded = minus(zero_floats(), larger(minus(zero_floats(), most), minus(zero_floats(), scaled)));
    const Floats grown = plus(power_of_two(bounded), splat(1.0f));
    const Floats bent = minus(splat(1.0f), quotient(splat(2.0f), grown));
    return mul(bent, splat(scoring.cap_scale));
}

// A row's scores of tokens first … last − 1 become weights relative to their highest; those around them, within the
// tiles from `from` to `to`, become 0.
inline Gathered weigh(float* scores, int from, int to, int first, int last, const Scoring& scoring) {
    if (first >= last) {
        for (int t = from; t < to; t += kLanes) store(scores + t, zero_floats());
        return {};
    }
    Floats highest = splat(kUnseen);
    for (int t = from; t < to; t += kLanes) {
        Floats exponent = exponents(load_floats(scores + t), scoring);
        if (t < first || t + kLanes > last) exponent = keep_lanes(exponent, first - t, last - t, kUnseen);
        store(scores + t, exponent);
        highest = larger(exponent, highest);
    }
    Gathered row;
    row.highest = across(highest, Largest{});
    Floats sum = zero_floats();
    for (int t = from; t < to; t += kLanes) {
        const Floats weight = power_of_two(minus(load_floats(scores + t), splat(row.highest)));
        store(scores + t, weight);
        sum = plus(sum, weight);
    }
    row.sum = across(sum, Sum{});
    return row;
}

// What rows see of a split, kScoreStride weights a row; `values[i]` is tile i's first row, rows `dim` apart.
template <typename T>
struct Tokens {
    const float* weights;
    const T* const* values;
    int first, last;
};

// Adds weight · value of all tokens to R rows' answers, in C registers from dimension d on.
template <int R, int C, typename T>
inline void add_values(const Tokens<T>& tokens, int dim, int d, const Joint* joints, float* answers) {
    Floats sums[R][C];
    for (auto& row : sums)
        for (auto& sum : row) sum = zero_floats();
    for (int t = tokens.first; t < tokens.last; ++t) {
        const T* row = tokens.values[t / kTileTokens] + t % kTileTokens * dim + d;
        Floats value[C];
        for (int c = 0; c < C; ++c) value[c] = load_wide(row + c * kLanes);
        for (int r = 0; r < R; ++r) {
            const Floats weight = splat(tokens.weights[r * kScoreStride + t]);
            for (int c = 0; c < C; ++c) sums[r][c] = mul_add(weight, value[c], sums[r][c]);
        }
    }
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c) {
            float* answer = answers + r * dim + d + c * kLanes;
            store(answer, joined(load_floats(answer), joints[r].before, sums[r][c], joints[r].now));
        }
}

}  // namespace atomesh
