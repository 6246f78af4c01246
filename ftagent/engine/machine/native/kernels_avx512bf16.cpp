// AVX-512 BF16: dots by vdpbf16ps (pairs of exact products, float32 sums), the down column as in AVX-512.
// Compiled with the flags of native.py; without them the table is empty.
#include "record_loop.h"

#if defined(__AVX512BF16__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#include "sixteen.h"

namespace ft {
namespace {

struct Bf16Pairs : SixteenBf16 {
    using X = uint16_t;
    static constexpr int kDot = 32;

    static __m512i dot_weights(const T* p) { return _mm512_loadu_si512(p); }
    static __m512i dot_tail(const T* p, int n) { return _mm512_maskz_loadu_epi16((1u << n) - 1, p); }
    static F dot(F sum, __m512i weights, const X* x) {
        return _mm512_dpbf16_ps(sum, (__m512bh)weights, (__m512bh)_mm512_load_si512(x));
    }
};

const RecordKernel kKernels[] = {
    {kBf16, kAvx512Bf16, "avx512bf16", false, records<Bf16Pairs>, plain_record_bytes<Bf16Pairs>},
};

}  // namespace

KernelTable avx512bf16_kernels() { return {kKernels, 1}; }

}  // namespace ft
#else
namespace ft {
KernelTable avx512bf16_kernels() { return {nullptr, 0}; }
}  // namespace ft
#endif
