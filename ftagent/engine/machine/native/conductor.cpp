// Conductor: its thread, and the caller's side. The answer to a posted layer is in answer.cpp.
#include "conductor.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "team.h"

namespace ft {
namespace {

constexpr int64_t IDLE_SPIN_NS = 2'000'000;
constexpr int FIRST_POST = 6;       // the first post may wait behind other work of the device, this many times longer
constexpr int64_t CALLER_SPIN = 2000;
constexpr int64_t COLD_STEPS = 8;   // threads, caches and address translation are cold: no measure of the costs

void futex_wait(std::atomic<uint32_t>* word, uint32_t value) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}
void futex_wake(std::atomic<uint32_t>* word) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 64, nullptr, nullptr, 0); }

std::string seconds(int64_t ns) {
    char text[32];
    snprintf(text, sizeof text, "%.1f s", double(ns) / 1e9);
    return text;
}

Places places_of(const ConductorSetup& setup) {
    const int64_t record_bytes = int64_t(3) * setup.hidden * setup.itemsize;
    return {setup.layers,  setup.experts, setup.intermediate, record_bytes,
            setup.rows_at, setup.slots_at, setup.slot_of,     setup.landed};
}

}  // namespace

Conductor::Conductor(const ConductorSetup& setup)
    : setup_(setup),
      pairs_max_(setup.rows * setup.per_token),
      policy_(*static_cast<Policy*>(setup.policy)),
      executor_(static_cast<Executor*>(setup.executor)),
      link_(*static_cast<Link*>(setup.link)),
      flights_(policy_, link_, places_of(setup), setup.piece_bytes),
      record_bytes_(int64_t(3) * setup.hidden * setup.itemsize),
      wanted_mode_(setup.mode),
      mode_(setup.mode),
      watchdog_ns_(setup.watchdog_ns),
      post_ns_(setup.post_ns),
      published_layers_(2 * setup.layers),
      published_times_(setup.layers),
      shown_costs_(setup.costs),
      costs_(setup.costs),
      link_line_(setup.costs.fetch_fixed, setup.costs.fetch_expert, setup.intermediate),
      cpu_line_(setup.costs.cpu_fixed, setup.costs.cpu_expert, setup.intermediate),
      layer_counts_(2 * setup.layers),
      times_(setup.layers),
      unlinked_(setup.layers, 0),
      need_of_(setup.experts),
      stamp_(setup.experts, 0),
      next_pair_(pairs_max_),
      wanted_(setup.experts, 0),
      link_seen_(link_.completed()) {
    needs_.reserve(pairs_max_);
    pinned_.reserve(pairs_max_);
    misses_.reserve(pairs_max_);
    missing_.reserve(pairs_max_);
    cuts_.reserve(pairs_max_);
    parts_.reserve(pairs_max_);
    updates_.reserve(MAX_UPDATES);
    thread_ = std::thread([this] { run(); });
}

Conductor::~Conductor() {
    wait_answered();
    ask(Request::STOP);
    thread_.join();
}

void Conductor::ask(Request request) {
    request_.store(request, std::memory_order_relaxed);
    requests_.fetch_add(1, std::memory_order_release);
    futex_wake(&requests_);
}

void Conductor::wait_answered() {
    const uint32_t asked = requests_.load(std::memory_order_relaxed);
    for (int64_t spins = 0;; spins++) {
        const uint32_t answered = answered_.load(std::memory_order_acquire);
        if (answered == asked) return;
        if (spins > CALLER_SPIN) futex_wait(&answered_, answered);
        relax();
    }
}

void Conductor::begin_step(int32_t epoch, int32_t rows) {
    wait_answered();
    epoch_ = epoch;
    rows_ = std::clamp(rows, 0, setup_.rows);
    *array(setup_.offsets.rows, 0) = rows_;
    ask(Request::STEP);
}

bool Conductor::end_step(StepCounts* counts, int64_t* layers) {
    wait_answered();
    std::lock_guard<std::mutex> lock(mutex_);
    *counts = published_;
    std::copy(published_layers_.begin(), published_layers_.end(), layers);
    reported_.swap(failure_);
    failure_.clear();
    return reported_.empty();
}

void Conductor::layer_times(LayerTimes* out) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::copy(published_times_.begin(), published_times_.end(), out);
}

void Conductor::settle() {
    wait_answered();
    ask(Request::SETTLE);
    wait_answered();
}

void Conductor::set_costs(const CostModel& costs) {
    std::lock_guard<std::mutex> lock(mutex_);
    shown_costs_ = costs;
    costs_set_ = true;
}

CostModel Conductor::costs() {
    std::lock_guard<std::mutex> lock(mutex_);
    return shown_costs_;
}

void Conductor::set_watchdog(int64_t watchdog_ns, int64_t post_ns) {
    watchdog_ns_ = watchdog_ns;
    post_ns_ = post_ns;
}

void Conductor::set_unlinked(const uint8_t* unlinked) {
    settle();
    unlinked_.assign(unlinked, unlinked + setup_.layers);
}

std::string Conductor::failure() {
    std::lock_guard<std::mutex> lock(mutex_);
    return reported_;
}

bool Conductor::check_integrity(char* message, size_t size) {
    settle();
    if (flights_.any()) return snprintf(message, size, "experts are in flight after settling"), false;
    for (int slot = 0; slot < policy_.slots(); slot++)
        if (policy_.pinned(slot))
            return snprintf(message, size, "slot %d is pinned with nothing in flight", slot), false;
    return policy_.check_integrity(message, size);
}

void Conductor::run() {
    if (setup_.core >= 0) {
        cpu_set_t cores;
        CPU_ZERO(&cores);
        CPU_SET(setup_.core, &cores);
        pthread_setaffinity_np(pthread_self(), sizeof cores, &cores);
    }
    link_.attach();
    uint32_t taken = 0, spins = 0;
    int64_t since = now_ns();
    for (;;) {
        const uint32_t asked = requests_.load(std::memory_order_acquire);
        if (asked == taken) {
            if (idle(taken, since)) since = now_ns();
            rest(&spins);
            continue;
        }
        taken = asked;
        const Request request = request_.load(std::memory_order_relaxed);
        serve(request);
        answered_.store(taken, std::memory_order_release);
        futex_wake(&answered_);
        if (request == Request::STOP) return;
        since = now_ns();
    }
}

void Conductor::serve(Request request) {
    if (request == Request::STEP) {
        settled_ = false;
        step();
        // The caller writes the device's tables anew after a failure, so nothing may be in flight.
        if (failed_) drain();
        settled_ = failed_;
        failed_ = false;
    } else {
        drain();
        settled_ = true;
    }
}

// Without a core of its own the thread must let others run.
void Conductor::rest(uint32_t* spins) const {
    if (setup_.core < 0 && ++*spins % 64 == 0)
        sched_yield();
    else
        relax();
}

// Between steps: ends what the link has to do, then sleeps. True after a sleep.
bool Conductor::idle(uint32_t taken, int64_t since) {
    if (!settled_) pump();
    const bool busy = !settled_ && !link_dead_ && (!link_.idle() || (mode_ != CPU && flights_.pending()));
    if (busy || now_ns() - since < IDLE_SPIN_NS) return false;
    futex_wait(&requests_, taken);
    return true;
}

void Conductor::step() {
    step_began_ = now_ns();
    steps_++;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (costs_set_) {
            costs_ = shown_costs_;
            link_line_ = Line(costs_.fetch_fixed, costs_.fetch_expert, setup_.intermediate);
            cpu_line_ = Line(costs_.cpu_fixed, costs_.cpu_expert, setup_.intermediate);
        }
        costs_set_ = false;
    }
    if (!link_dead_ && !link_.error().empty()) link_failed(-1);
    mode_ = effective(wanted_mode_);
    policy_.begin_step();
    if (mode_ == CPU) {
        flights_.forget_candidates();
        flights_.cancel_partial();
    }
    if (executor_ && mode_ != OFFLOAD) executor_->keep_awake(true);
    for (int layer = 0; layer < setup_.layers && wait_post(layer); layer++) {
        times_[layer].post = now_ns() - step_began_;
        answer(layer);
        times_[layer].answered = now_ns() - step_began_;
    }
    if (executor_) executor_->keep_awake(false);
    uint32_t spins = 0;
    while (cpu_layer_ >= 0 || demand_layer_ >= 0) {
        pump();
        rest(&spins);
    }
    find_optimum();
    learn_nothing();
    publish();
}

bool Conductor::wait_post(int layer) {
    uint32_t spins = 0;
    const int64_t patience = post_ns_ * (layer == 0 ? FIRST_POST : 1), began = now_ns();
    while (load_flag(setup_.offsets.post, layer) != epoch_) {
        pump();
        rest(&spins);
        if (spins % 16 == 0 && now_ns() - began > patience) {
            fail("layer " + std::to_string(layer) + ": the device posted nothing for " + seconds(patience));
            return false;
        }
    }
    return true;
}

// What happens beside the steps: copies that land, a CPU part that ends, the next piece onto an idle link.
void Conductor::pump() {
    if (cpu_layer_ >= 0) finish_cpu();
    if (link_dead_) return;
    if (link_.completed() != link_seen_) {
        link_seen_ = link_.completed();
        flights_.retire();
        finish_demand();
        link_moved_ = now_ns();
    }
    find_optimum();
    const uint32_t under_way = link_.submitted() - link_.completed();
    if (under_way && now_ns() - link_moved_ > watchdog_ns_)
        link_failed(demand_layer_);
    else if (demand_layer_ < 0 && int32_t(under_way) < setup_.pieces && mode_ != CPU && flights_.pending())
        next_piece(under_way == 0);
}

void Conductor::next_piece(bool was_idle) {
    const int64_t now = now_ns();
    if (flights_.advance()) {
        if (was_idle) link_moved_ = now;
        const int64_t records = std::max<int64_t>(setup_.piece_bytes / record_bytes_, 1);
        const int64_t begins = was_idle ? now + costs_.fetch_fixed : std::max(piece_ends_, now);
        piece_ends_ = begins + records * costs_.fetch_expert / setup_.intermediate;
    } else if (!link_.error().empty()) {
        link_failed(-1);
    }
}

void Conductor::finish_demand() {
    if (demand_layer_ < 0 || !link_.reached(demand_mark_)) return;
    // A piece that was under way is not the demand's time: it counts from when that piece landed. As a measure of the
    // costs only a demand that found the link idle will do: of another a part of the fixed time was hidden.
    const int64_t now = now_ns(), measured = now - std::max(demand_started_, link_moved_);
    counts_.link_ns += measured;
    times_[demand_layer_].landed = now - step_began_;
    if (steps_ > COLD_STEPS && demand_alone_) {
        link_line_.add(demand_records_, measured);
        costs_.fetch_fixed = link_line_.fixed();
        costs_.fetch_expert = link_line_.expert();
        link_measured_ = true;
    }
    demand_layer_ = -1;
}

void Conductor::finish_cpu() {
    const int64_t elapsed = now_ns() - cpu_started_;
    if (load_flag(setup_.offsets.done, cpu_layer_) != epoch_) {
        // A worker that ends just now is not a hanging one: wait(0) decides.
        if (elapsed < watchdog_ns_ || executor_->wait(0)) return;
        const int layer = cpu_layer_;
        cpu_layer_ = -1;
        store_flag(setup_.offsets.done, layer, -epoch_);
        fail("layer " + std::to_string(layer) + ": CPU worker " + std::to_string(executor_->stuck_worker()) +
             " did not end its part within " + seconds(watchdog_ns_));
        mode_ = effective(mode_);
        return;
    }
    counts_.cpu_ns += elapsed;
    times_[cpu_layer_].computed = now_ns() - step_began_;
    if (steps_ > COLD_STEPS) {
        const int64_t rows_ns = cpu_row_records_ * costs_.cpu_row / setup_.intermediate;
        cpu_line_.add(cpu_records_, std::max<int64_t>(elapsed - rows_ns, 0));
        costs_.cpu_fixed = cpu_line_.fixed();
        costs_.cpu_expert = cpu_line_.expert();
        cpu_measured_ = true;
    }
    cpu_layer_ = -1;
}

// A side that had no part in a step with misses shows nothing: what is thought of it goes back towards the start.
void Conductor::learn_nothing() {
    if (mode_ == HYBRID && counts_.misses) {
        if (!link_measured_) link_line_.forget();
        if (!cpu_measured_) cpu_line_.forget();
        costs_.fetch_fixed = link_line_.fixed();
        costs_.fetch_expert = link_line_.expert();
        costs_.cpu_fixed = cpu_line_.fixed();
        costs_.cpu_expert = cpu_line_.expert();
    }
    link_measured_ = cpu_measured_ = false;
}

// What the split of the last layer would have fetched, had the constants been those of now.
void Conductor::find_optimum() {
    if (!optimum_due_ || cpu_layer_ >= 0 || demand_layer_ >= 0) return;
    optimum_due_ = false;
    const SplitInput input{setup_.intermediate, setup_.grain, 0, 0, optimum_mode_, 0};
    const int count = int(misses_.size());
    cuts_.resize(count);
    choose_split(costs_, misses_.data(), count, input, cuts_.data());
    for (int i = 0; i < count; i++) counts_.records_optimum += cuts_[i] - misses_[i].have;
}

// Ends what is in flight: complete experts land, others are dropped.
void Conductor::drain() {
    flights_.forget_candidates();
    flights_.cancel_partial();
    uint32_t spins = 0;
    while (!link_dead_ && !link_.idle()) {
        pump();
        rest(&spins);
    }
    pump();
}

void Conductor::publish() {
    FlightCounts& flights = flights_.counts;
    counts_.backfilled = flights.backfilled;
    counts_.guessed = flights.guessed;
    counts_.guess_used = flights.guess_used;
    counts_.bytes_link = flights.bytes;
    flights = {};
    std::lock_guard<std::mutex> lock(mutex_);
    published_ = counts_;
    published_layers_ = layer_counts_;
    published_times_.swap(times_);
    if (!costs_set_) shown_costs_ = costs_;
    counts_ = {};
    std::fill(layer_counts_.begin(), layer_counts_.end(), 0);
    std::fill(times_.begin(), times_.end(), LayerTimes{});
}

void Conductor::fail(const std::string& sentence) {
    failed_ = true;
    std::lock_guard<std::mutex> lock(mutex_);
    if (failure_.empty()) failure_ = sentence;
}

void Conductor::link_failed(int layer) {
    link_.sound();  // names what the device met, if it did
    const std::string reason =
        link_.error().empty() ? "a copy did not end within " + seconds(watchdog_ns_) : link_.error();
    const std::string where = layer >= 0 ? "layer " + std::to_string(layer) + ": " : "between layers: ";
    fail(where + "copies into slots failed: " + reason);
    link_dead_ = true;
    demand_layer_ = -1;
    flights_.abandon();
    mode_ = effective(mode_);
}

}  // namespace ft
