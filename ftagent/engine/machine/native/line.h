// What a side of the split needs for its work, learnt from what it took: experts/line.py, operation by operation.
#pragma once

#include <stdint.h>

#include <algorithm>

namespace ft {

class Line {
  public:
    Line(int64_t fixed, int64_t expert, int64_t records)
        : records_(double(records)),
          start_fixed_(double(fixed)),
          start_slope_(double(std::max<int64_t>(expert, 1)) / double(records)),
          fixed_(start_fixed_),
          slope_(start_slope_) {}

    int64_t fixed() const { return int64_t(fixed_); }
    int64_t expert() const { return int64_t(slope_ * records_); }

    void add(int64_t records, int64_t ns) {
        const double n = double(records), taken = std::min(double(ns), BOUND * (fixed_ + slope_ * n));
        const double added[SUMS] = {1.0, n, n * n, taken, n * taken};
        for (int i = 0; i < SUMS; i++) sums_[i] = DECAY * sums_[i] + added[i];
        fit();
    }

    void forget() {
        for (int i = 0; i < SUMS; i++) sums_[i] = DECAY * sums_[i];
        fixed_ += (start_fixed_ - fixed_) * (1.0 - DECAY);
        slope_ += (start_slope_ - slope_) * (1.0 - DECAY);
    }

  private:
    static constexpr int SUMS = 5;
    static constexpr double DECAY = 31.0 / 32.0, HOLD = 2.0, BOUND = 4.0, STEEPEST = 64.0;

    void fit() {
        double weight = sums_[0], n = sums_[1], nn = sums_[2], ns = sums_[3], n_ns = sums_[4];
        const double places[2] = {records_ / 4.0, records_ * 2.0};
        for (const double place : places) {
            const double held = fixed_ + slope_ * place;
            weight += HOLD;
            n += HOLD * place;
            nn += HOLD * (place * place);
            ns += HOLD * held;
            n_ns += HOLD * (place * held);
        }
        const double mean = n / weight, height = ns / weight;
        double slope = (n_ns / weight - mean * height) / (nn / weight - mean * mean);
        slope = std::min(std::max(slope, start_slope_ / STEEPEST), start_slope_ * STEEPEST);
        fixed_ = std::max(height - slope * mean, 0.0);
        slope_ = (height - fixed_) / mean;
    }

    double records_, start_fixed_, start_slope_;
    double fixed_, slope_;
    double sums_[SUMS] = {};
};

}  // namespace ft
