// How the records of missing experts are shared by link and CPU: experts/costs.py (choose_split), on integers.
#pragma once

#include <stdint.h>

namespace ft {

constexpr int64_t MIN_GAIN_NS = 5000;  // what an expert on both sides must save to be worth its second hand-over
constexpr int MAX_MISSES = 1024;       // of one layer

enum Mode : int32_t { HYBRID = 0, OFFLOAD = 1, CPU = 2 };

// All in nanoseconds; see experts/costs.py.
struct CostModel {
    int64_t fetch_fixed, fetch_expert, cpu_fixed, cpu_expert, cpu_row;

    int64_t link_ns(int64_t records, int64_t intermediate) const {
        return records ? fetch_fixed + records * fetch_expert / intermediate : 0;
    }
    int64_t compute_ns(int64_t records, int64_t row_records, int64_t intermediate) const {
        return records ? cpu_fixed + (records * cpu_expert + row_records * cpu_row) / intermediate : 0;
    }
};

struct Miss {
    int64_t rows, frequency, have;
};

struct SplitInput {
    int32_t intermediate, grain;
    int64_t link_busy_ns, device_ns;
    int32_t mode;
    int64_t min_gain_ns;  // MIN_GAIN_NS, or 0 for the optimum that counters report
};

// cuts: [count]; count <= MAX_MISSES.
void choose_split(const CostModel& costs, const Miss* misses, int count, const SplitInput& input, int32_t* cuts);

}  // namespace ft
