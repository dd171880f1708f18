#pragma once

// Sixteen 32-bit lanes, whatever the instruction set makes of them: one register of AVX-512, two of AVX2. A sum is
// formed in the same order in both, but bfloat16 products are rounded as each processor does it.

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace atomesh {

constexpr int kLanes = 16;
constexpr int kLaneBytes = 64;

#if defined(__AVX512F__)

struct Floats {
    __m512 v;
};
struct Ints {
    __m512i v;
};

inline Floats zero_floats() { return {_mm512_setzero_ps()}; }
inline Ints zero_ints() { return {_mm512_setzero_si512()}; }
inline Floats splat(float x) { return {_mm512_set1_ps(x)}; }
inline Ints splat(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline Ints splat_byte(int8_t x) { return {_mm512_set1_epi8(x)}; }
inline Floats load_floats(const float* p) { return {_mm512_loadu_ps(p)}; }
inline Ints load_ints(const void* p) { return {_mm512_loadu_si512(p)}; }
inline void store(float* p, Floats x) { _mm512_storeu_ps(p, x.v); }
inline void store(void* p, Ints x) { _mm512_storeu_si512(p, x.v); }
inline Floats load_halves(const uint16_t* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline Floats to_floats(Ints x) { return {_mm512_cvtepi32_ps(x.v)}; }
inline Floats to_floats_from_bfloats(const uint16_t* p) {
    const __m256i raw = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16))};
}
// To the nearest, ties to even, as are the two below.
inline void store_bytes(int8_t* p, Floats x) {
    const __m128i bytes = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x.v));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}
inline void store_bfloats(uint16_t* p, Floats x) {
    const __m256bh half = _mm512_cvtneps_pbh(x.v);
    std::memcpy(p, &half, sizeof half);
}
inline Floats add(Floats a, Floats b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Floats max_magnitude(Floats a, Floats x) { return {_mm512_max_ps(a.v, _mm512_abs_ps(x.v))}; }
inline Floats mul(Floats a, Floats b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Floats mul_add(Floats a, Floats b, Floats c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Ints bit_and(Ints a, Ints b) { return {_mm512_and_si512(a.v, b.v)}; }
inline Ints high_nibbles(Ints x) { return {_mm512_and_si512(_mm512_srli_epi16(x.v, 4), _mm512_set1_epi8(15))}; }

// The first and the second of the two bfloat16 in each lane.
inline Floats first_bfloats(Ints x) { return {_mm512_castsi512_ps(_mm512_slli_epi32(x.v, 16))}; }
inline Floats second_bfloats(Ints x) {
    return {_mm512_castsi512_ps(_mm512_and_si512(x.v, _mm512_set1_epi32(static_cast<int32_t>(0xffff0000u))))};
}
// acc + Σ of four products of an unsigned byte of `codes` and a signed byte of `values`, in each lane.
inline Ints dot_quads(Ints acc, Ints codes, Ints values) {
    return {_mm512_dpbusd_epi32(acc.v, codes.v, values.v)};
}

#else

struct Floats {
    __m256 low, high;
};
struct Ints {
    __m256i low, high;
};

inline Floats zero_floats() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline Ints zero_ints() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline Floats splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Ints splat(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline Ints splat_byte(int8_t x) { return {_mm256_set1_epi8(x), _mm256_set1_epi8(x)}; }
inline Floats load_floats(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline Ints load_ints(const void* p) {
    const __m256i* q = static_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
inline void store(float* p, Floats x) {
    _mm256_storeu_ps(p, x.low);
    _mm256_storeu_ps(p + 8, x.high);
}
inline void store(void* p, Ints x) {
    __m256i* q = static_cast<__m256i*>(p);
    _mm256_storeu_si256(q, x.low);
    _mm256_storeu_si256(q + 1, x.high);
}
inline Floats load_halves(const uint16_t* p) {
    const __m128i* q = reinterpret_cast<const __m128i*>(p);
    return {_mm256_cvtph_ps(_mm_loadu_si128(q)), _mm256_cvtph_ps(_mm_loadu_si128(q + 1))};
}
inline Floats to_floats(Ints x) { return {_mm256_cvtepi32_ps(x.low), _mm256_cvtepi32_ps(x.high)}; }
inline Floats to_floats_from_bfloats(const uint16_t* p) {
    const __m128i* q = reinterpret_cast<const __m128i*>(p);
    const auto widen = [](__m128i x) { return _mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16); };
    return {_mm256_castsi256_ps(widen(_mm_loadu_si128(q))), _mm256_castsi256_ps(widen(_mm_loadu_si128(q + 1)))};
}
inline void store_bytes(int8_t* p, Floats x) {
    const __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(x.low), _mm256_cvtps_epi32(x.high));
    const __m256i ordered = _mm256_permute4x64_epi64(words, 0xd8);
    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}
inline __m128i to_bfloats(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i lowest = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(lowest, _mm256_set1_epi32(0x7fff)));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i chosen = _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc00000), is_nan);
    const __m256i words = _mm256_packus_epi32(_mm256_srli_epi32(chosen, 16), _mm256_setzero_si256());
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(words, 0xd8));
}
inline void store_bfloats(uint16_t* p, Floats x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), to_bfloats(x.low));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p) + 1, to_bfloats(x.high));
}
inline Floats add(Floats a, Floats b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
inline Floats max_magnitude(Floats a, Floats x) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_max_ps(a.low, _mm256_andnot_ps(sign, x.low)), _mm256_max_ps(a.high, _mm256_andnot_ps(sign, x.high))};
}
inline Floats mul(Floats a, Floats b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
inline Floats mul_add(Floats a, Floats b, Floats c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline Ints bit_and(Ints a, Ints b) { return {_mm256_and_si256(a.low, b.low), _mm256_and_si256(a.high, b.high)}; }
inline Ints high_nibbles(Ints x) {
    const __m256i mask = _mm256_set1_epi8(15);
    return {_mm256_and_si256(_mm256_srli_epi16(x.low, 4), mask),
            _mm256_and_si256(_mm256_srli_epi16(x.high, 4), mask)};
}

inline Floats first_bfloats(Ints x) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(x.low, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(x.high, 16))};
}
inline Floats second_bfloats(Ints x) {
    const __m256i mask = _mm256_set1_epi32(static_cast<int32_t>(0xffff0000u));
    return {_mm256_castsi256_ps(_mm256_and_si256(x.low, mask)), _mm256_castsi256_ps(_mm256_and_si256(x.high, mask))};
}
// By 16-bit products of even and odd bytes: maddubs would saturate at codes beyond 127.
inline __m256i dot_quads(__m256i acc, __m256i codes, __m256i values) {
    const __m256i even_codes = _mm256_and_si256(codes, _mm256_set1_epi16(255));
    const __m256i even_values = _mm256_srai_epi16(_mm256_slli_epi16(values, 8), 8);
    acc = _mm256_add_epi32(acc, _mm256_madd_epi16(even_codes, even_values));
    return _mm256_add_epi32(
        acc, _mm256_madd_epi16(_mm256_srli_epi16(codes, 8), _mm256_srai_epi16(values, 8)));
}
inline Ints dot_quads(Ints acc, Ints codes, Ints values) {
    return {dot_quads(acc.low, codes.low, values.low), dot_quads(acc.high, codes.high, values.high)};
}

#endif

// The same 32 bits, four bytes or two bfloat16, in all lanes.
inline Ints splat_bits(const void* p) {
    int32_t bits;
    std::memcpy(&bits, p, sizeof bits);
    return splat(bits);
}

}  // namespace atomesh
