// The plain C interface of kernels, executor and bandwidth, as ctypes calls it.
#include <stdint.h>

#include "bandwidth.h"
#include "executor.h"
#include "kernels.h"

#define FT_API extern "C" __attribute__((visibility("default")))

namespace {

enum Result { kOk = 0, kTimeout = 1, kBroken = 2, kBadPart = 3 };

ft::Executor* executor(void* handle) { return static_cast<ft::Executor*>(handle); }

bool fits(const ft::Part& part, int intermediate, int rows) {
    return part.records && part.y && part.first >= 0 && part.first <= part.last && part.last <= intermediate &&
           part.row >= 0 && part.row < rows;
}

}  // namespace

FT_API uint32_t ft_cpu_features() { return ft::cpu_features(); }

// GB/s; see bandwidth.h.
FT_API double ft_read_bandwidth(int64_t bytes, int32_t threads, double seconds) {
    return ft::read_bandwidth(bytes, threads, seconds);
}

// The address of an ft::Executor, or null: unknown dtype, no memory or no thread.
FT_API void* ft_executor_new(const ft::Shape* shape, int32_t threads, const int32_t* cores, int32_t isa) {
    ft::Executor* const made = new ft::Executor(*shape, threads, cores, isa);
    if (made->usable()) return made;
    delete made;
    return nullptr;
}

FT_API void ft_executor_free(void* handle) { delete executor(handle); }

// Begin all parts. x: [rows, hidden]. When they are done the last worker stores `value` to *done (null: nowhere).
// 0 ok, 2 broken or busy, 3 a part out of range (nothing was begun).
FT_API int32_t ft_executor_start(void* handle, const ft::Part* parts, int32_t count, const void* x, int32_t rows,
                                 volatile uint32_t* done, uint32_t value) {
    ft::Executor* const own = executor(handle);
    for (int32_t i = 0; i < count; ++i)
        if (!fits(parts[i], own->shape().intermediate, rows)) return kBadPart;
    return own->start(parts, count, x, done, value) ? kOk : kBroken;
}

// Until the parts are done. 0 ok, 1 time-out: broken from now on.
FT_API int32_t ft_executor_wait(void* handle, int64_t timeout_ns) {
    return executor(handle)->wait(timeout_ns) ? kOk : kTimeout;
}

// Seconds of one pass of all workers over `bytes` at `data` (64-byte aligned), only reading; negative: broken.
FT_API double ft_executor_read(void* handle, const void* data, int64_t bytes, int64_t timeout_ns) {
    return executor(handle)->read(data, bytes, timeout_ns);
}

// Seconds of one pass over a pool of experts, see bandwidth.h; negative: broken.
FT_API double ft_executor_gemv(void* handle, const ft::Pool* pool, int64_t timeout_ns) {
    return ft::gemv_pass(*executor(handle), *pool, timeout_ns);
}

FT_API int32_t ft_executor_threads(void* handle) { return executor(handle)->threads(); }
FT_API const char* ft_executor_isa(void* handle) { return executor(handle)->isa(); }
FT_API int32_t ft_executor_stuck(void* handle) { return executor(handle)->stuck_worker(); }
FT_API void ft_executor_wake(void* handle) { executor(handle)->wake(); }
FT_API void ft_executor_stall(void* handle, int64_t ns) { executor(handle)->stall_for_test(ns); }
