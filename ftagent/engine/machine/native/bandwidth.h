// How fast this machine's memory can be read: what the record kernels are measured against.
#pragma once

#include <stdint.h>

namespace ft {

// Read `lines` cache lines; nothing else is done with them.
void read_lines(const uint8_t* data, int64_t lines);

// GB/s (1e9 bytes) that `threads` pinned workers read from `bytes` of huge pages: the median of the passes that fit
// into `seconds`, three at least. Negative: no memory, or no threads.
double read_bandwidth(int64_t bytes, int threads, double seconds);

class Executor;

// A pool of whole experts in host memory, larger than the caches, and what is computed on it.
struct Pool {
    const void* records;  // [experts] rows of the executor's row_bytes
    int32_t experts;
    int32_t per_job;  // experts of one job
    int32_t rows;     // rows of x that each expert computes
    const void* x;    // [rows, hidden]
    float* y;         // [per_job * rows, hidden], written over by every job
};

// Seconds to compute every expert of the pool once, job after job, in an order that strides through it.
// Negative: broken or timed out.
double gemv_pass(Executor& executor, const Pool& pool, int64_t timeout_ns);

}  // namespace ft
