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
inline Floats mul(Floats a, Floats b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Floats mul_add(Floats a, Floats b, Floats c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Ints bit_and(Ints a, Ints b) { return {_mm512_and_si512(a.v, b.v)}; }
inline Ints high_nibbles(Ints x) { return {_mm512_and_si512(_mm512_srli_epi16(x.v, 4), _mm512_set1_epi8(15))}; }

// acc + a₀·b₀ + a₁·b₁, pairs of bfloat16 in each lane.
inline Floats dot_pairs(Floats acc, Ints a, Ints b) {
    return {_mm512_dpbf16_ps(acc.v, reinterpret_cast<__m512bh>(a.v), reinterpret_cast<__m512bh>(b.v))};
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

inline __m256 dot_pairs(__m256 acc, __m256i a, __m256i b) {
    const __m256i odd = _mm256_set1_epi32(static_cast<int32_t>(0xffff0000u));
    const auto first = [](__m256i x) { return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16)); };
    const auto second = [odd](__m256i x) { return _mm256_castsi256_ps(_mm256_and_si256(x, odd)); };
    acc = _mm256_fmadd_ps(first(a), first(b), acc);
    return _mm256_fmadd_ps(second(a), second(b), acc);
}
inline Floats dot_pairs(Floats acc, Ints a, Ints b) {
    return {dot_pairs(acc.low, a.low, b.low), dot_pairs(acc.high, a.high, b.high)};
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
