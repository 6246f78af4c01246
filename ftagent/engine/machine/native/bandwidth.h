// How fast this machine's memory can be read: what the record kernels are measured against.
#pragma once

#include <stdint.h>

namespace ft {

// Read `lines` cache lines; nothing else is done with them.
void read_lines(const uint8_t* data, int64_t lines);

// GB/s (1e9 bytes) that `threads` pinned workers read from `bytes` of huge pages: the median of the passes that fit
// into `seconds`, three at least. Negative: no memory, or no threads.
double read_bandwidth(int64_t bytes, int threads, double seconds);

}  // namespace ft
