// The loop over records, written once over a vector type V; each kernels_<isa>.cpp instantiates it with its own.
// Everything is in an unnamed namespace: the files are compiled for different processors and must share no code.
//
// V gives: T (element of a record), X (element of x), F (float vector), kLanes (floats in F), kDot (elements a
// dot step takes), kRegisters, kTogether (rows that share a pass), zero, set, load, store, add, fma, sum,
// weights(T*), weights_tail(T*, n), and for dots: dot_weights(T*), dot_tail(T*, n), dot(F, weights, X*).
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels.h"

namespace ft {
namespace {

constexpr int kLine = 64;
// Measured on two machines: 4 to 8 KiB ahead is worth a third and more, 1 KiB half of that, 16 KiB less.
constexpr int64_t kAheadBytes = 8192;

// Rows of weights that one pass over x takes: as many as leave each its two sums per row of x in registers.
template <class V, int R>
constexpr int rows_per_pass() {
    const int fit = V::kRegisters / 2 / (2 * R);
    return fit >= 4 ? 4 : fit >= 2 ? 2 : 1;
}

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
#pragma GCC unroll 4
    for (int w = 0; w < W; ++w)
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) sums[w][r][0] = sums[w][r][1] = V::zero();
    int h = 0;
    for (; h + kBody <= work.hidden; h += kBody) {
#pragma GCC unroll 16
        for (int line = 0; line < kBody * int(sizeof(T)); line += kLine)
#pragma GCC unroll 4
            for (int w = 0; w < W; ++w) __builtin_prefetch(ahead[w] + h * sizeof(T) + line);
#pragma GCC unroll 8
        for (int step = 0; step < kSteps; ++step)
#pragma GCC unroll 4
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
#pragma GCC unroll 4
        for (int w = 0; w < W; ++w) {
            const T* at = reinterpret_cast<const T*>(rows[w]) + h;
            const int left = work.hidden - h;
            const auto weights = left >= V::kDot ? V::dot_weights(at) : V::dot_tail(at, left);
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r)
                sums[w][r][0] = V::dot(sums[w][r][0], weights, static_cast<const X*>(work.x[r]) + h);
        }
    }
#pragma GCC unroll 4
    for (int w = 0; w < W; ++w)
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) out[w][r] = V::sum(V::add(sums[w][r][0], sums[w][r][1]));
}

// y[r] += act[b][r] * b-th row of weights, in the order of b
template <class V, int R, int B>
inline __attribute__((always_inline)) void add_scaled(const Work& work, const uint8_t* const* rows,
                                                      const uint8_t* const* ahead, const float (*act)[R]) {
    using T = typename V::T;
    constexpr int kSteps = kLine / int(sizeof(T)) / V::kLanes;
    constexpr int kBody = kSteps * V::kLanes;
    typename V::F scale[B][R];
    for (int b = 0; b < B; ++b)
        for (int r = 0; r < R; ++r) scale[b][r] = V::set(act[b][r]);
    const auto step = [&](int at, const typename V::F(&values)[B]) __attribute__((always_inline)) {
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
            auto sum = V::load(work.y[r] + at);
#pragma GCC unroll 2
            for (int b = 0; b < B; ++b) sum = V::fma(scale[b][r], values[b], sum);
            V::store(work.y[r] + at, sum);
        }
    };
    int h = 0;
    for (; h + kBody <= work.hidden; h += kBody) {
#pragma GCC unroll 2
        for (int b = 0; b < B; ++b) __builtin_prefetch(ahead[b] + h * sizeof(T));
#pragma GCC unroll 8
        for (int i = 0; i < kSteps; ++i) {
            typename V::F values[B];
#pragma GCC unroll 2
            for (int b = 0; b < B; ++b)
                values[b] = V::weights(reinterpret_cast<const T*>(rows[b]) + h + i * V::kLanes);
            step(h + i * V::kLanes, values);
        }
    }
    for (; h < work.hidden; h += V::kLanes) {
        const int left = work.hidden - h;
        typename V::F values[B];
        for (int b = 0; b < B; ++b) {
            const T* const at = reinterpret_cast<const T*>(rows[b]) + h;
            values[b] = left >= V::kLanes ? V::weights(at) : V::weights_tail(at, left);
        }
        step(h, values);
    }
}

inline float scalar(const float* p) { return *p; }
inline float scalar(const uint16_t* p) {
    const uint32_t bits = uint32_t(*p) << 16;
    float out;
    memcpy(&out, &bits, sizeof out);
    return out;
}

// A comparison with a NaN is false, so one stays what it is.
inline float joined(const Swiglu& how, float gate, float up) {
    if (gate > how.limit) gate = how.limit;
    if (up > how.limit) up = how.limit;
    if (up < -how.limit) up = -how.limit;
    return gate / (1.0f + expf(-how.alpha * gate)) * (up + how.offset);
}

// B records at a time, from row `from` of the run on; returns the row behind the last whole batch. The rows are
// consumed gate, up, (gate, up,) down, (down); each one fetches the row that comes `lead` later in that order, so
// every row is fetched once, and none that is being read beside it.
template <class V, int R, int B>
inline int64_t batches(const Work& work, int64_t from) {
    constexpr int kRows = 3 * B, kDots = 2 * B;
    constexpr int kPass = rows_per_pass<V, R>() < kDots ? rows_per_pass<V, R>() : kDots;
    const int64_t row_bytes = int64_t(work.hidden) * sizeof(typename V::T);
    const int64_t rows = 3 * int64_t(work.last - work.first);
    const int64_t wanted = (kAheadBytes + row_bytes / 2) / row_bytes;
    const int64_t lead = wanted > kDots ? wanted : kDots;
    const uint8_t* const base = work.expert + 3 * row_bytes * work.first;
    const uint8_t* const after = work.next ? work.next : base;
    const auto* const biases = reinterpret_cast<const typename V::T*>(work.biases);
    int64_t near[kRows], far[kRows];
    for (int j = 0; j < kRows; ++j) near[j] = j < kDots ? j / 2 * 3 + j % 2 : 3 * (j - kDots) + 2;
    for (int j = 0; j < kRows; ++j) far[j] = (j + lead) / kRows * kRows + near[(j + lead) % kRows];
    for (; from + kRows <= rows; from += kRows) {
        const uint8_t* at[kRows];
        const uint8_t* ahead[kRows];
        for (int j = 0; j < kRows; ++j) {
            const int64_t row = from + far[j];
            at[j] = base + (from + near[j]) * row_bytes;
            ahead[j] = row < rows ? base + row * row_bytes : after + (row - rows) * row_bytes;
        }
        float gate_up[kDots][R];
#pragma GCC unroll 4
        for (int w = 0; w < kDots; w += kPass) dots<V, R, kPass>(work, at + w, ahead + w, gate_up + w);
        float act[B][R];
        for (int b = 0; b < B; ++b) {
            float to_gate = 0, to_up = 0;
            if (biases) {
                const int64_t record = work.first + from / 3 + b;
                to_gate = scalar(biases + record);
                to_up = scalar(biases + work.intermediate + record);
            }
            for (int r = 0; r < R; ++r)
                act[b][r] = joined(work.swiglu, gate_up[2 * b][r] + to_gate, gate_up[2 * b + 1][r] + to_up);
        }
        add_scaled<V, R, B>(work, at + kDots, ahead + kDots, act);
    }
    return from;
}

template <class V, int R>
void records_on(const Work& given) {
    const Work work = given;  // a copy whose fields cannot alias y
    // Two records at a time halve the traffic of y and the pauses between dots and sums.
    const int64_t row = batches<V, R, 2>(work, 0);
    batches<V, R, 1>(work, row);
}

// V::kTogether bounds how many rows share a pass over the weights, and with it the code to compile: four where it
// pays, two for what is not meant to be fast.
template <class V>
void records(const Work& work) {
    Work some = work;
    for (int32_t begun = 0; begun < work.rows; begun += some.rows) {
        some.rows = work.rows - begun < V::kTogether ? work.rows - begun : V::kTogether;
        for (int32_t r = 0; r < some.rows; ++r) {
            some.x[r] = work.x[begun + r];
            some.y[r] = work.y[begun + r];
        }
        if (some.rows == 1) records_on<V, 1>(some);
        if (some.rows == 2) records_on<V, 2>(some);
        if constexpr (V::kTogether > 2) {
            if (some.rows == 3) records_on<V, 3>(some);
            if (some.rows == 4) records_on<V, 4>(some);
        }
    }
}

template <class V>
int64_t plain_record_bytes(int32_t hidden) {
    return 3 * int64_t(hidden) * sizeof(typename V::T);
}

}  // namespace
}  // namespace ft
