#include "bandwidth.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <vector>

#include "executor.h"
#include "team.h"

namespace ft {
namespace {

constexpr int kMaxPasses = 1024;
constexpr int64_t kAheadBytes = 8192;  // as in the record kernels
constexpr int64_t kPassLimitNs = 60'000'000'000;

struct Pass {
    uint8_t* data;
    int64_t lines;
    int threads;
};

struct Range {
    uint8_t* data;
    int64_t lines;
};

Range range_of(void* context, int worker) {
    const Pass& pass = *static_cast<const Pass*>(context);
    const int64_t begin = pass.lines * worker / pass.threads, end = pass.lines * (worker + 1) / pass.threads;
    return {pass.data + 64 * begin, end - begin};
}

void fill(void* context, int worker) {
    const Range range = range_of(context, worker);
    memset(range.data, 1 + worker, 64 * range.lines);
}

void read(void* context, int worker) {
    const Range range = range_of(context, worker);
    read_lines(range.data, range.lines);
}

int by_size(const void* a, const void* b) {
    const double x = *static_cast<const double*>(a), y = *static_cast<const double*>(b);
    return (x > y) - (x < y);
}

// Median GB/s of the passes; negative on a time-out.
double measure(Team& team, Pass& pass, double seconds) {
    double rates[kMaxPasses];
    int count = 0;
    if (!team.start(fill, &pass, nullptr, 0) || !team.wait(kPassLimitNs)) return -1;
    const int64_t end = now_ns() + int64_t(seconds * 1e9);
    while (count < kMaxPasses && (count < 3 || now_ns() < end)) {
        const int64_t begin = now_ns();
        if (!team.start(read, &pass, nullptr, 0) || !team.wait(kPassLimitNs)) return -1;
        rates[count++] = 64.0 * double(pass.lines) / double(now_ns() - begin);
    }
    qsort(rates, count, sizeof(double), by_size);
    return rates[count / 2];
}

}  // namespace

void read_lines(const uint8_t* data, int64_t lines) {
    using Words = uint64_t __attribute__((vector_size(16)));
    Words sums[4] = {};
    for (int64_t line = 0; line < lines; ++line) {
        const Words* const at = reinterpret_cast<const Words*>(data + 64 * line);
        __builtin_prefetch(data + 64 * line + kAheadBytes);
        for (int i = 0; i < 4; ++i) sums[i] ^= at[i];
    }
    const Words all = sums[0] ^ sums[1] ^ sums[2] ^ sums[3];
    // The compiler must believe that the result is used.
    asm volatile("" : : "r"(all[0]), "r"(all[1]));
}

double read_bandwidth(int64_t bytes, int threads, double seconds) {
    if (bytes < 64) return -1;
    void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return -1;
    madvise(data, bytes, MADV_HUGEPAGE);
    Team* const team = new Team(threads, nullptr);
    // Of a worker that hangs both the memory and what it was handed must stay.
    Pass* const pass = new Pass{static_cast<uint8_t*>(data), bytes / 64, team->threads()};
    const double rate = team->threads() ? measure(*team, *pass, seconds) : -1;
    if (Team::release(team)) {
        munmap(data, bytes);
        delete pass;
    }
    return rate;
}

double gemv_pass(Executor& executor, const Pool& pool, int64_t timeout_ns) {
    const Shape shape = executor.shape();
    // An odd stride that shares no factor with the pool visits every expert, never two neighbours in a row.
    int64_t stride = pool.experts / 3 * 2 + 1;
    const auto common = [](int64_t a, int64_t b) {
        while (b) {
            const int64_t rest = a % b;
            a = b;
            b = rest;
        }
        return a;
    };
    while (common(stride, pool.experts) != 1) ++stride;
    std::vector<Part> parts(size_t(pool.per_job) * pool.rows);
    const int64_t begin = now_ns();
    for (int32_t at = 0; at < pool.experts; at += pool.per_job) {
        const int32_t count = pool.experts - at < pool.per_job ? pool.experts - at : pool.per_job;
        for (int32_t i = 0; i < count * pool.rows; ++i) {
            const int64_t expert = (at + i / pool.rows) * stride % pool.experts;
            const char* const row = static_cast<const char*>(pool.records) + expert * shape.row_bytes;
            parts[i] = {row, 0, shape.intermediate, i % pool.rows, pool.y + int64_t(i) * shape.hidden};
        }
        if (!executor.start(parts.data(), count * pool.rows, pool.x, nullptr, 0)) return -1;
        if (!executor.wait(timeout_ns)) return -1;
    }
    return double(now_ns() - begin) * 1e-9;
}

}  // namespace ft
