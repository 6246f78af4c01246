// Record kernels: partial experts on 1 to 4 rows of x, one table per instruction set, chosen at run time.
//
// A record is the weights of one intermediate channel: gate row, up row and down column, each `hidden` elements.
// A kernel for another stored format is another entry with its own dtype: it is handed the expert's first byte and
// the sizes, finds records and scales itself, and says with `float_x` how it wants x.
#pragma once

#include <stdint.h>

namespace ft {

enum Isa : int32_t { kScalar = 0, kAvx2 = 1, kAvx512 = 2, kAvx512Bf16 = 3 };
enum Dtype : int32_t { kBf16 = 0, kFloat32 = 1 };

constexpr int kMaxRows = 4;
// x and y of a kernel are padded to a multiple of this many elements; the padding of x holds zeros.
constexpr int kPad = 64;

// How a channel's gate g and up u become one: (u + offset) * g / (1 + exp(-alpha * g)), where g is at most `limit` and
// u at most that far from zero.
struct Swiglu {
    float alpha, limit, offset;
};

// y[r] += sum over i in [first, last) of act(gate_i . x[r] + bias_i, up_i . x[r] + bias_(intermediate + i)) * down_i
struct Work {
    const uint8_t* expert;  // first byte of the expert's row
    const uint8_t* next;    // first record that this worker reads afterwards, fetched in time; null: none
    int32_t first, last;
    int32_t hidden, intermediate;
    const uint8_t* biases;  // [2 * intermediate] of the records' dtype; null: none
    Swiglu swiglu;
    int32_t rows;
    const void* x[kMaxRows];  // float32 or bf16, see RecordKernel::float_x; 64-byte aligned, padded
    float* y[kMaxRows];       // 64-byte aligned, padded
};

struct RecordKernel {
    int32_t dtype;  // Dtype of the records
    Isa isa;
    const char* name;
    bool float_x;  // x as float32; else as it is given: bf16
    void (*run)(const Work&);
    int64_t (*record_bytes)(int32_t hidden);
};

struct KernelTable {
    const RecordKernel* kernels;
    int count;  // 0 where the compiler did not know the instruction set
};

KernelTable scalar_kernels();
KernelTable avx2_kernels();
KernelTable avx512_kernels();
KernelTable avx512bf16_kernels();

// Bit 1 << Isa for each instruction set that the processor and the system support.
uint32_t cpu_features();
// The best kernel for `dtype` up to `isa` (-1: no limit) that this processor runs. Null: unknown dtype.
const RecordKernel* choose_kernel(int32_t dtype, int32_t isa);

}  // namespace ft
