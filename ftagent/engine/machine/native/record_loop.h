// The loop over records, written once over a vector type V; each kernels_<isa>.cpp instantiates it with its own.
// Everything is in an unnamed namespace: the files are compiled for different processors and must share no code.
//
// V gives: T (element of a record), X (element of x), F (float vector), kLanes (floats in F), kDot (elements a
// dot step takes), kRegisters, zero, set, load, store, fma, sum, weights(T*), weights_tail(T*, n),
// and for dots: D, dot_weights(T*), dot_tail(T*, n), dot(F, D, X*).
#pragma once

#include <math.h>
#include <stdint.h>

#include "kernels.h"

namespace ft {
namespace {

constexpr int kLine = 64;
// Measured on two machines: 4 to 8 KiB ahead is worth a third and more, 1 KiB half of that, 16 KiB less.
constexpr int64_t kAheadBytes = 8192;

// out[w][r] = w-th row of weights . x[r]. Each sum has two chains whatever the number of rows, so a row's result
// does not depend on its company.
template <class V, int R, int W>
inline __attribute__((always_inline)) void dots(const Work& work, const uint8_t* const* rows,
                                                const uint8_t* const* ahead, float (*out)[R]) {
    using T = typename V::T;
    using X = typename V::X;
    constexpr int kSteps = 2 * V::kDot * int(sizeof(T)) >= kLine ? 2 : kLine / (V::kDot * int(sizeof(T)));
    constexpr int kBody = kSteps * V::kDot;
    typename V::F sums[W][R][2];
#pragma GCC unroll 2
    for (int w = 0; w < W; ++w)
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) sums[w][r][0] = sums[w][r][1] = V::zero();
    int h = 0;
    for (; h + kBody <= work.hidden; h += kBody) {
#pragma GCC unroll 16
        for (int line = 0; line < kBody * int(sizeof(T)); line += kLine)
#pragma GCC unroll 2
            for (int w = 0; w < W; ++w) __builtin_prefetch(ahead[w] + h * sizeof(T) + line);
#pragma GCC unroll 8
        for (int step = 0; step < kSteps; ++step)
#pragma GCC unroll 2
            for (int w = 0; w < W; ++w) {
                const int at = h + step * V::kDot;
                const auto weights = V::dot_weights(reinterpret_cast<const T*>(rows[w]) + at);
#pragma GCC unroll 4
                for (int r = 0; r < R; ++r)
                    sums[w][r][step & 1] =
                        V::dot(sums[w][r][step & 1], weights, static_cast<const X*>(work.x[r]) + at);
            }
    }
    for (; h < work.hidden; h += V::kDot) {
#pragma GCC unroll 2
        for (int w = 0; w < W; ++w) {
            const T* at = reinterpret_cast<const T*>(rows[w]) + h;
            const int left = work.hidden - h;
            const auto weights = left >= V::kDot ? V::dot_weights(at) : V::dot_tail(at, left);
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r)
                sums[w][r][0] = V::dot(sums[w][r][0], weights, static_cast<const X*>(work.x[r]) + h);
        }
    }
#pragma GCC unroll 2
    for (int w = 0; w < W; ++w)
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) out[w][r] = V::sum(V::add(sums[w][r][0], sums[w][r][1]));
}

// y[r] += act[r] * row
template <class V, int R>
inline __attribute__((always_inline)) void add_scaled(const Work& work, const uint8_t* row, const uint8_t* ahead,
                                                      const float* act) {
    using T = typename V::T;
    constexpr int kSteps = kLine / int(sizeof(T)) / V::kLanes;
    constexpr int kBody = kSteps * V::kLanes;
    const T* weights = reinterpret_cast<const T*>(row);
    typename V::F scale[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) scale[r] = V::set(act[r]);
    int h = 0;
    for (; h + kBody <= work.hidden; h += kBody) {
        __builtin_prefetch(ahead + h * sizeof(T));
#pragma GCC unroll 8
        for (int step = 0; step < kSteps; ++step) {
            const int at = h + step * V::kLanes;
            const auto values = V::weights(weights + at);
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) {
                float* y = work.y[r] + at;
                V::store(y, V::fma(scale[r], values, V::load(y)));
            }
        }
    }
    for (; h < work.hidden; h += V::kLanes) {
        const int left = work.hidden - h;
        const auto values = left >= V::kLanes ? V::weights(weights + h) : V::weights_tail(weights + h, left);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
            float* y = work.y[r] + h;
            V::store(y, V::fma(scale[r], values, V::load(y)));
        }
    }
}

template <class V, int R>
void records_on(const Work& given) {
    const Work work = given;  // a copy whose fields cannot alias y
    const int64_t row_bytes = int64_t(work.hidden) * sizeof(typename V::T);
    const int64_t lead = row_bytes >= kAheadBytes ? 1 : (kAheadBytes + row_bytes / 2) / row_bytes;
    const int64_t rows = 3 * int64_t(work.last - work.first);
    const uint8_t* const base = work.expert + 3 * row_bytes * work.first;
    const uint8_t* const after = work.next ? work.next : base;
    for (int64_t row = 0; row < rows; row += 3) {
        const uint8_t* at[3];
        const uint8_t* ahead[3];
        for (int j = 0; j < 3; ++j) {
            const int64_t far = row + j + lead;
            at[j] = base + (row + j) * row_bytes;
            ahead[j] = far < rows ? base + far * row_bytes : after + (far - rows) * row_bytes;
        }
        float gate_up[2][R];
        if (R <= 2 || V::kRegisters > 16) {
            dots<V, R, 2>(work, at, ahead, gate_up);
        } else {
            dots<V, R, 1>(work, at, ahead, gate_up);
            dots<V, R, 1>(work, at + 1, ahead + 1, gate_up + 1);
        }
        float act[R];
        for (int r = 0; r < R; ++r) act[r] = gate_up[0][r] / (1.0f + expf(-gate_up[0][r])) * gate_up[1][r];
        add_scaled<V, R>(work, at[2], ahead[2], act);
    }
}

template <class V>
void records(const Work& work) {
    switch (work.rows) {
        case 1: return records_on<V, 1>(work);
        case 2: return records_on<V, 2>(work);
        case 3: return records_on<V, 3>(work);
        default: return records_on<V, 4>(work);
    }
}

template <class V>
int64_t plain_record_bytes(int32_t hidden) {
    return 3 * int64_t(hidden) * sizeof(typename V::T);
}

}  // namespace
}  // namespace ft
