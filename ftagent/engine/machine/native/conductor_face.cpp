// The plain C interface of the conductor, as experts/conductor.py calls it.
#include <stdio.h>

#include "conductor.h"

#define FT_API extern "C" __attribute__((visibility("default")))

namespace {
ft::Conductor* conductor(void* handle) { return static_cast<ft::Conductor*>(handle); }
}  // namespace

FT_API void* ft_conductor_new(const ft::ConductorSetup* setup) { return new ft::Conductor(*setup); }
FT_API void ft_conductor_free(void* handle) { delete conductor(handle); }
FT_API void ft_conductor_begin(void* handle, int32_t epoch, int32_t rows) {
    conductor(handle)->begin_step(epoch, rows);
}
// 1: done; 0: failed. layers: int64 [2 * layers], hits then misses.
FT_API int ft_conductor_end(void* handle, ft::StepCounts* counts, int64_t* layers) {
    return conductor(handle)->end_step(counts, layers);
}
FT_API void ft_conductor_times(void* handle, ft::LayerTimes* out) { conductor(handle)->layer_times(out); }
FT_API void ft_conductor_settle(void* handle) { conductor(handle)->settle(); }
FT_API void ft_conductor_set_mode(void* handle, int32_t mode) { conductor(handle)->set_mode(mode); }
FT_API int32_t ft_conductor_mode(void* handle) { return conductor(handle)->mode(); }
FT_API void ft_conductor_set_costs(void* handle, const ft::CostModel* costs) { conductor(handle)->set_costs(*costs); }
FT_API void ft_conductor_costs(void* handle, ft::CostModel* out) { *out = conductor(handle)->costs(); }
FT_API void ft_conductor_watchdog(void* handle, int64_t watchdog_ns, int64_t post_ns) {
    conductor(handle)->set_watchdog(watchdog_ns, post_ns);
}
// unlinked: uint8 [layers].
FT_API void ft_conductor_unlinked(void* handle, const uint8_t* unlinked) {
    conductor(handle)->set_unlinked(unlinked);
}
FT_API void ft_conductor_failure(void* handle, char* message, int size) {
    snprintf(message, size_t(size), "%s", conductor(handle)->failure().c_str());
}
FT_API int ft_conductor_check(void* handle, char* message, int size) {
    return conductor(handle)->check_integrity(message, size_t(size));
}
