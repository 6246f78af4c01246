#include "costs.h"

#include "line.h"

#include <algorithm>

namespace ft {
namespace {

bool fetched_before(const Miss& a, const Miss& b) {
    if (a.have != b.have) return a.have > b.have;
    if (a.rows != b.rows) return a.rows > b.rows;
    return a.frequency > b.frequency;
}

// Tries the cuts of misses in fetching order.
class Split {
  public:
    Split(const CostModel& costs, const Miss* misses, const int16_t* order, int count, const SplitInput& input)
        : costs_(costs), misses_(misses), order_(order), count_(count), input_(input), records_(input.intermediate) {
        for (int i = 0; i < count; i++) {
            left_ += records_ - misses[i].have;
            left_rows_ += misses[i].rows * (records_ - misses[i].have);
        }
    }

    // Experts to fetch whole; *cut of the one behind them or 0.
    int best(int64_t* cut) {
        int whole = 0, shared = -1;
        int64_t whole_ns = finish(0, 0), shared_ns = 0;
        *cut = 0;
        for (int at = 0; at < count_; at++) {
            const Miss& miss = misses_[order_[at]];
            const int64_t missing = records_ - miss.have;
            if (shared < 0 && ahead(missing, miss.rows)) {
                *cut = share(miss, &shared_ns);
                shared = at;
            }
            link_ += missing;
            left_ -= missing;
            left_rows_ -= miss.rows * missing;
            const int64_t now = finish(0, 0);
            if (now <= whole_ns) {
                whole = at + 1;
                whole_ns = now;
            }
        }
        if (shared >= 0 && *cut && whole_ns - shared_ns >= input_.min_gain_ns) return shared;
        *cut = 0;
        return whole;
    }

  private:
    // Best cut strictly inside this expert, 0 if there is none.
    int64_t share(const Miss& miss, int64_t* best_ns) const {
        const int64_t grain = input_.grain;
        int64_t low = miss.have / grain + 1, high = (records_ + grain - 1) / grain - 1;
        if (low > high) return 0;
        const int64_t first = low, last = high;
        while (low < high) {
            const int64_t middle = (low + high) / 2;
            if (ahead(middle * grain - miss.have, miss.rows))
                high = middle;
            else
                low = middle + 1;
        }
        int64_t best = 0;
        for (int64_t grains = low - 1; grains <= low; grains++) {
            if (grains < first || grains > last) continue;
            const int64_t now = finish(grains * grain - miss.have, miss.rows);
            if (!best || now <= *best_ns) {
                best = grains * grain;
                *best_ns = now;
            }
        }
        return best;
    }
    bool ahead(int64_t fetched, int64_t rows) const { return link_ns(fetched) >= cpu_ns(fetched, rows); }
    int64_t finish(int64_t fetched, int64_t rows) const {
        return std::max({link_ns(fetched), cpu_ns(fetched, rows), input_.device_ns});
    }
    int64_t link_ns(int64_t fetched) const {
        const int64_t records = link_ + fetched;
        return records ? input_.link_busy_ns + costs_.link_ns(records, records_) : 0;
    }
    int64_t cpu_ns(int64_t fetched, int64_t rows) const {
        return costs_.compute_ns(left_ - fetched, left_rows_ - rows * fetched, records_);
    }

    const CostModel& costs_;
    const Miss* const misses_;
    const int16_t* const order_;
    const int count_;
    const SplitInput& input_;
    const int64_t records_;
    int64_t link_ = 0, left_ = 0, left_rows_ = 0;
};

}  // namespace

void choose_split(const CostModel& costs, const Miss* misses, int count, const SplitInput& input, int32_t* cuts) {
    if (input.mode == OFFLOAD) {
        std::fill(cuts, cuts + count, input.intermediate);
        return;
    }
    int16_t order[MAX_MISSES];
    for (int i = 0; i < count; i++) {
        cuts[i] = int32_t(misses[i].have);
        // Stable insertion: few entries, and ties keep their order.
        int place = i;
        for (; place > 0 && fetched_before(misses[i], misses[order[place - 1]]); place--)
            order[place] = order[place - 1];
        order[place] = int16_t(i);
    }
    if (input.mode == CPU || count == 0) return;
    int64_t cut = 0;
    const int whole = Split(costs, misses, order, count, input).best(&cut);
    for (int i = 0; i < whole; i++) cuts[order[i]] = input.intermediate;
    if (cut) cuts[order[whole]] = int32_t(cut);
}

}  // namespace ft

#define FT_API extern "C" __attribute__((visibility("default")))

FT_API void ft_costs_split(const ft::CostModel* costs, const ft::Miss* misses, int count, const ft::SplitInput* input,
                           int32_t* cuts) {
    ft::choose_split(*costs, misses, count, *input, cuts);
}
FT_API void* ft_line_new(int64_t fixed, int64_t expert, int64_t records) {
    return new ft::Line(fixed, expert, records);
}
FT_API void ft_line_free(void* line) { delete static_cast<ft::Line*>(line); }
FT_API void ft_line_add(void* line, int64_t records, int64_t ns) { static_cast<ft::Line*>(line)->add(records, ns); }
FT_API void ft_line_forget(void* line) { static_cast<ft::Line*>(line)->forget(); }
FT_API void ft_line_constants(void* line, int64_t* fixed, int64_t* expert) {
    *fixed = static_cast<ft::Line*>(line)->fixed();
    *expert = static_cast<ft::Line*>(line)->expert();
}
