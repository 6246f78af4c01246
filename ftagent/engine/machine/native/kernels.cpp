#include "kernels.h"

namespace ft {

uint32_t cpu_features() {
    uint32_t bits = 1u << kScalar;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) bits |= 1u << kAvx2;
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("fma");
    if (avx512) bits |= 1u << kAvx512;
    if (avx512 && __builtin_cpu_supports("avx512bf16")) bits |= 1u << kAvx512Bf16;
#endif
    return bits;
}

const RecordKernel* choose_kernel(int32_t dtype, int32_t isa) {
    const uint32_t features = cpu_features();
    const KernelTable tables[] = {avx512bf16_kernels(), avx512_kernels(), avx2_kernels(), scalar_kernels()};
    for (const KernelTable& table : tables) {
        for (int i = 0; i < table.count; ++i) {
            const RecordKernel& kernel = table.kernels[i];
            const bool allowed = isa < 0 || kernel.isa <= isa;
            if (kernel.dtype == dtype && allowed && (features >> kernel.isa & 1)) return &kernel;
        }
    }
    return nullptr;
}

}  // namespace ft
