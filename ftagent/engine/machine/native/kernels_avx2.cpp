// AVX2 and FMA. Compiled with the flags of native.py; without them the table is empty.
#include "record_loop.h"

#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#include <string.h>

namespace ft {
namespace {

struct Eight {
    using X = float;
    using F = __m256;
    static constexpr int kLanes = 8, kDot = 8, kRegisters = 16;

    static F zero() { return _mm256_setzero_ps(); }
    static F set(float value) { return _mm256_set1_ps(value); }
    static F load(const float* p) { return _mm256_load_ps(p); }
    static void store(float* p, F value) { _mm256_store_ps(p, value); }
    static F add(F a, F b) { return _mm256_add_ps(a, b); }
    static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
    static F dot(F sum, F weights, const float* x) { return _mm256_fmadd_ps(weights, load(x), sum); }
    static float sum(F v) {
        __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
        s = _mm_add_ps(s, _mm_movehl_ps(s, s));
        return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
    }
};

struct Float : Eight {
    using T = float;
    static constexpr int kTogether = 2;
    static F weights(const T* p) { return _mm256_loadu_ps(p); }
    static F weights_tail(const T* p, int n) {
        alignas(32) T out[8] = {};
        memcpy(out, p, n * sizeof(T));
        return weights(out);
    }
    static F dot_weights(const T* p) { return weights(p); }
    static F dot_tail(const T* p, int n) { return weights_tail(p, n); }
};

struct Bf16 : Eight {
    using T = uint16_t;
    static constexpr int kTogether = 4;
    static F weights(const T* p) {
        const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
        return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
    }
    static F weights_tail(const T* p, int n) {
        alignas(16) T out[8] = {};
        memcpy(out, p, n * sizeof(T));
        return weights(out);
    }
    static F dot_weights(const T* p) { return weights(p); }
    static F dot_tail(const T* p, int n) { return weights_tail(p, n); }
};

const RecordKernel kKernels[] = {
    {kBf16, kAvx2, "avx2", true, records<Bf16>, plain_record_bytes<Bf16>},
    {kFloat32, kAvx2, "avx2", true, records<Float>, plain_record_bytes<Float>},
};

}  // namespace

KernelTable avx2_kernels() { return {kKernels, 2}; }

}  // namespace ft
#else
namespace ft {
KernelTable avx2_kernels() { return {nullptr, 0}; }
}  // namespace ft
#endif
