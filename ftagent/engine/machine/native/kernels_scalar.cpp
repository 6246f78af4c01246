// Any processor: vectors of four floats that the compiler maps to what there is.
#include <string.h>

#include "record_loop.h"

namespace ft {
namespace {

struct Four {
    using X = float;
    using F = float __attribute__((vector_size(16)));
    static constexpr int kLanes = 4, kDot = 4, kRegisters = 16;

    static F zero() { return F{0, 0, 0, 0}; }
    static F set(float value) { return F{value, value, value, value}; }
    static F load(const float* p) {
        F out;
        memcpy(&out, p, sizeof out);
        return out;
    }
    static void store(float* p, F value) { memcpy(p, &value, sizeof value); }
    static F add(F a, F b) { return a + b; }
    static F fma(F a, F b, F c) { return a * b + c; }
    static F dot(F sum, F weights, const float* x) { return weights * load(x) + sum; }
    static float sum(F v) { return (v[0] + v[1]) + (v[2] + v[3]); }
};

struct Float : Four {
    using T = float;
    static constexpr int kTogether = 2;
    static F weights(const T* p) { return load(p); }
    static F weights_tail(const T* p, int n) {
        float out[4] = {0, 0, 0, 0};
        memcpy(out, p, n * sizeof(T));
        return load(out);
    }
    static F dot_weights(const T* p) { return weights(p); }
    static F dot_tail(const T* p, int n) { return weights_tail(p, n); }
};

struct Bf16 : Four {
    using T = uint16_t;
    static constexpr int kTogether = 2;
    static F weights(const T* p) {
        using Half = T __attribute__((vector_size(8)));
        using Word = uint32_t __attribute__((vector_size(16)));
        Half half;
        memcpy(&half, p, sizeof half);
        return reinterpret_cast<F>(__builtin_convertvector(half, Word) << 16);
    }
    static F weights_tail(const T* p, int n) {
        T out[4] = {0, 0, 0, 0};
        memcpy(out, p, n * sizeof(T));
        return weights(out);
    }
    static F dot_weights(const T* p) { return weights(p); }
    static F dot_tail(const T* p, int n) { return weights_tail(p, n); }
};

const RecordKernel kKernels[] = {
    {kBf16, kScalar, "scalar", true, records<Bf16>, plain_record_bytes<Bf16>},
    {kFloat32, kScalar, "scalar", true, records<Float>, plain_record_bytes<Float>},
};

}  // namespace

KernelTable scalar_kernels() { return {kKernels, 2}; }

}  // namespace ft
