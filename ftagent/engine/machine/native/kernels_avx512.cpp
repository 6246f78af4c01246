// AVX-512 (F, BW, VL, DQ). Compiled with the flags of native.py; without them the table is empty.
#include "record_loop.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#include "sixteen.h"

namespace ft {
namespace {

struct Float : Sixteen {
    using T = float;
    static constexpr int kTogether = 2;
    static F weights(const T* p) { return _mm512_loadu_ps(p); }
    static F weights_tail(const T* p, int n) { return _mm512_maskz_loadu_ps((1u << n) - 1, p); }
    static F dot_weights(const T* p) { return weights(p); }
    static F dot_tail(const T* p, int n) { return weights_tail(p, n); }
};

struct Bf16 : SixteenBf16 {
    static F dot_weights(const T* p) { return weights(p); }
    static F dot_tail(const T* p, int n) { return weights_tail(p, n); }
};

const RecordKernel kKernels[] = {
    {kBf16, kAvx512, "avx512", true, records<Bf16>, plain_record_bytes<Bf16>},
    {kFloat32, kAvx512, "avx512", true, records<Float>, plain_record_bytes<Float>},
};

}  // namespace

KernelTable avx512_kernels() { return {kKernels, 2}; }

}  // namespace ft
#else
namespace ft {
KernelTable avx512_kernels() { return {nullptr, 0}; }
}  // namespace ft
#endif
