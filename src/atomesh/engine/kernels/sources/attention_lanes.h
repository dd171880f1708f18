#pragma once

// What attention does with sixteen floats beyond `lanes.h`. Element types of the pool are float and Bfloat16.

#include "lanes.h"

namespace atomesh {

struct Bfloat16 {
    uint16_t bits;
};

inline float widen(float x) { return x; }
inline float widen(Bfloat16 x) {
    const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
    float wide;
    std::memcpy(&wide, &bits, sizeof wide);
    return wide;
}

#if defined(__AVX512F__)

inline Floats minus(Floats a, Floats b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Floats plus(Floats a, Floats b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Floats quotient(Floats a, Floats b) { return {_mm512_div_ps(a.v, b.v)}; }
// The second where either is no number.
inline Floats larger(Floats a, Floats b) { return {_mm512_max_ps(a.v, b.v)}; }

inline Floats load_wide(const float* p) { return load_floats(p); }
inline Floats load_wide(const Bfloat16* p) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}
inline void store_narrow(float* p, Floats x) { store(p, x); }
inline void store_narrow(Bfloat16* p, Floats x) {
    const __m256bh bits = _mm512_cvtneps_pbh(x.v);
    std::memcpy(p, &bits, sizeof bits);
}

// `x` in lanes from … to − 1, `other` in the rest.
inline Floats keep_lanes(Floats x, int from, int to, float other) {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __mmask16 kept = _mm512_cmpge_epi32_mask(lane, _mm512_set1_epi32(from)) &
                           _mm512_cmplt_epi32_mask(lane, _mm512_set1_epi32(to));
    return {_mm512_mask_blend_ps(kept, _mm512_set1_ps(other), x.v)};
}

// x · 2ⁿ for whole n, zero below the smallest float.
inline Floats scale_by_power(Floats x, Floats n) { return {_mm512_scalef_ps(x.v, n.v)}; }
inline Floats round_to_whole(Floats x) {
    return {_mm512_roundscale_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}

inline __m256 low_half(Floats x) { return _mm512_castps512_ps256(x.v); }
inline __m256 high_half(Floats x) { return _mm512_extractf32x8_ps(x.v, 1); }

#else

inline Floats minus(Floats a, Floats b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
inline Floats plus(Floats a, Floats b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
inline Floats quotient(Floats a, Floats b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
inline Floats larger(Floats a, Floats b) {
    return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}

inline Floats load_wide(const float* p) { return load_floats(p); }
inline Floats load_wide(const Bfloat16* p) {
    const auto widened = [](const Bfloat16* q) {
        const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(q));
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
    };
    return {widened(p), widened(p + 8)};
}
inline void store_narrow(float* p, Floats x) { store(p, x); }
inline void store_narrow(Bfloat16* p, Floats x) {
    uint32_t bits[kLanes];
    store(reinterpret_cast<float*>(bits), x);
    for (int i = 0; i < kLanes; ++i) {
        const bool is_number = (bits[i] & 0x7fffffffu) <= 0x7f800000u;
        const uint32_t rounded = bits[i] + 0x7fffu + ((bits[i] >> 16) & 1u);
        p[i].bits = static_cast<uint16_t>(is_number ? rounded >> 16 : (bits[i] >> 16) | 0x40u);
    }
}

inline Floats keep_lanes(Floats x, int from, int to, float other) {
    const auto kept = [from, to, other](__m256 half, int first) {
        const __m256i lane = _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(first));
        const __m256i inside = _mm256_and_si256(_mm256_cmpgt_epi32(lane, _mm256_set1_epi32(from - 1)),
                                                _mm256_cmpgt_epi32(_mm256_set1_epi32(to), lane));
        return _mm256_blendv_ps(_mm256_set1_ps(other), half, _mm256_castsi256_ps(inside));
    };
    return {kept(x.low, 0), kept(x.high, 8)};
}

inline Floats scale_by_power(Floats x, Floats n) {
    const auto scaled = [](__m256 half, __m256 power) {
        const __m256 smallest = _mm256_set1_ps(-126.0f);
        const __m256i exponent = _mm256_cvtps_epi32(_mm256_max_ps(power, smallest));
        const __m256i factor = _mm256_slli_epi32(_mm256_add_epi32(exponent, _mm256_set1_epi32(127)), 23);
        const __m256 product = _mm256_mul_ps(half, _mm256_castsi256_ps(factor));
        return _mm256_andnot_ps(_mm256_cmp_ps(power, smallest, _CMP_LT_OQ), product);
    };
    return {scaled(x.low, n.low), scaled(x.high, n.high)};
}
inline Floats round_to_whole(Floats x) {
    constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(x.low, nearest), _mm256_round_ps(x.high, nearest)};
}

inline __m256 low_half(Floats x) { return x.low; }
inline __m256 high_half(Floats x) { return x.high; }

#endif

constexpr float kPower[6] = {0.6931471824645996f,   0.24022650718688965f,   0.055503569543361664f,
                             0.009618056938052177f, 0.0013390866806730628f, 0.00015461447765119374f};

// 2ˣ for x ≤ 127, to about an ulp, exactly 1 at 0: a polynomial fitted to (2ʳ − 1) / r on |r| ≤ ½.
inline Floats power_of_two(Floats x) {
    const Floats whole = round_to_whole(x);
    const Floats rest = minus(x, whole);
    Floats sum = splat(kPower[5]);
    for (int i = 4; i >= 0; --i) sum = mul_add(sum, rest, splat(kPower[i]));
    return scale_by_power(mul_add(sum, rest, splat(1.0f)), whole);
}

// One order for every caller: halves, quarters, pairs.
template <typename Combine>
inline float across(Floats x, Combine&& combine) {
    const __m256 eight = combine(low_half(x), high_half(x));
    float lane[8];
    _mm256_storeu_ps(lane, eight);
    for (int width = 4; width >= 1; width /= 2)
        for (int i = 0; i < width; ++i) lane[i] = combine(lane[i], lane[i + width]);
    return lane[0];
}

struct Sum {
    __m256 operator()(__m256 a, __m256 b) const { return _mm256_add_ps(a, b); }
    float operator()(float a, float b) const { return a + b; }
};
struct Largest {
    __m256 operator()(__m256 a, __m256 b) const { return _mm256_max_ps(a, b); }
    float operator()(float a, float b) const { return a > b ? a : b; }
};

}  // namespace atomesh
