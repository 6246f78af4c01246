// Vectors of sixteen floats for the AVX-512 kernels. Like record_loop.h, to be included once per file.
#pragma once

// GCC 12's own AVX-512 headers start from an undefined vector and then warn about it (GCC bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include <immintrin.h>
#include <stdint.h>

namespace ft {
namespace {

struct Sixteen {
    using X = float;
    using F = __m512;
    static constexpr int kLanes = 16, kDot = 16, kRegisters = 32;

    static F zero() { return _mm512_setzero_ps(); }
    static F set(float value) { return _mm512_set1_ps(value); }
    static F load(const float* p) { return _mm512_load_ps(p); }
    static void store(float* p, F value) { _mm512_store_ps(p, value); }
    static F add(F a, F b) { return _mm512_add_ps(a, b); }
    static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
    static F dot(F sum, F weights, const float* x) { return _mm512_fmadd_ps(weights, load(x), sum); }
    static float sum(F v) {
        const __m256 s = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
        __m128 t = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
        t = _mm_add_ps(t, _mm_movehl_ps(t, t));
        return _mm_cvtss_f32(_mm_add_ss(t, _mm_shuffle_ps(t, t, 1)));
    }
};

struct SixteenBf16 : Sixteen {
    using T = uint16_t;
    static constexpr int kTogether = 4;
    static F widen(__m256i half) {
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
    }
    static F weights(const T* p) { return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
    static F weights_tail(const T* p, int n) { return widen(_mm256_maskz_loadu_epi16((1u << n) - 1, p)); }
};

}  // namespace
}  // namespace ft
