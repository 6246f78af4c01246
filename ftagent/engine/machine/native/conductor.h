// Serves the misses of a decode step: one thread that reads what each layer's kernels post in the mailbox, decides
// which experts come over the link and which the CPU computes, starts both, and answers with the layer's plan.
//
// The device runs a captured graph and never waits for more than this thread's answer, the copies and the CPU's part.
// Layouts: experts/mailbox.py. Decisions: policy.h, costs.h. What an idle link does: flights.h.
// Slots are safe because experts leave only while the device waits for a plan, never one that the posted layer uses.
// Between `settle` and the next step the tables belong to the caller.
#pragma once

#include <stdint.h>

#include <atomic>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "costs.h"
#include "executor.h"
#include "flights.h"
#include "line.h"
#include "link.h"
#include "policy.h"

namespace ft {

constexpr int FLAG_INTS = 16, MAX_UPDATES = 64;  // experts/mailbox.py

struct MailboxOffsets {
    int64_t post, planned, done, rows, ids, seen, guess, slot, cut, ticket, updates, update_index, update_value, x, y;
};

struct ConductorSetup {
    int32_t layers, experts, rows, per_token, guesses, hidden, intermediate, itemsize;
    MailboxOffsets offsets;
    uint64_t mailbox;                   // host address
    const uint64_t* rows_at;            // host addresses of experts [layers * experts]
    const uint64_t* slots_at;           // device addresses of slots [slots]
    uint64_t slot_of, landed;           // device addresses
    void *policy, *executor, *link;     // executor: null without a CPU side
    CostModel costs;
    int32_t mode;
    int32_t core;                       // to pin the thread to, -1: nowhere
    int32_t grain;                      // records
    int32_t reserve;                    // slots to keep free for look-ahead and backfill
    int64_t piece_bytes;
    int32_t pieces;                     // of them under way at once
    int64_t watchdog_ns, post_ns;       // longest CPU part or copy; longest wait for the device's next post
};

// One step, or since the last one. All int64: Python reads them as an array.
struct StepCounts {
    int64_t hits, misses, fetched, split, cpu_experts, backfilled, guessed, guess_used, evictions;
    int64_t bytes_link, bytes_cpu, link_ns, cpu_ns, records_fetched, records_missed, records_optimum;
};

// When a layer of a step was posted, answered, and had its copies and its CPU part: nanoseconds since the step was
// asked for, 0 for what there was not.
struct LayerTimes {
    int64_t post, answered, landed, computed;
};

class Conductor {
  public:
    explicit Conductor(const ConductorSetup& setup);
    ~Conductor();

    // The caller's side. One thread at a time.
    void begin_step(int32_t epoch, int32_t rows);
    // Waits for the step's end. False: failed, see `failure`. layers: hits [layers], then misses [layers].
    bool end_step(StepCounts* counts, int64_t* layers);
    void layer_times(LayerTimes* out);  // of the last step, [layers]
    void settle();  // ends what is in flight; the tables belong to the caller until the next step
    void set_mode(int32_t mode) { wanted_mode_ = mode; }
    int32_t mode() const { return mode_; }  // after fall-backs, as of the last step
    void set_costs(const CostModel& costs);
    CostModel costs();
    void set_watchdog(int64_t watchdog_ns, int64_t post_ns);
    // unlinked: [layers], not 0 where copies would block this thread (host memory that could not be registered): in
    // mode hybrid the CPU computes all that such a layer misses. Settles first.
    void set_unlinked(const uint8_t* unlinked);
    std::string failure();
    bool check_integrity(char* message, size_t size);  // settles first

  private:
    enum class Request : int32_t { STEP, SETTLE, STOP };
    struct Need {  // one expert of the posted layer
        int32_t expert, rows, pair;  // the first pair; `next_pair_` leads on
        int32_t slot, have, cut, ticket;
        bool hit, fixed;  // fixed: nothing to decide, it is or will be in its slot
    };

    // conductor.cpp: the thread
    void run();
    void serve(Request request);
    void ask(Request request);
    void wait_answered();
    void step();
    bool wait_post(int layer);
    void pump();
    void next_piece(bool was_idle);
    void finish_cpu();
    void finish_demand();
    bool idle(uint32_t taken, int64_t since);
    void rest(uint32_t* spins) const;
    void learn_nothing();
    void find_optimum();
    void drain();
    void publish();
    void fail(const std::string& sentence);
    void link_failed(int layer);

    // answer.cpp: one posted layer
    void answer(int layer);
    bool gather(int layer);
    void add_pair(int pair, int expert, int seen);
    bool classify(int layer, bool* parked);
    void split(int layer);
    bool assign(int layer);
    bool take_slot(int layer, Need& need);
    bool start_cpu(int layer);
    bool start_link(int layer);
    void keep_reserve(int layer);
    void write_plan(int layer);
    void refuse(int layer);
    void look_ahead(int layer);
    void unpin_hits();
    int32_t effective(int32_t mode) const;
    int32_t layer_mode(int layer) const { return unlinked_[layer] && mode_ == HYBRID ? int32_t(CPU) : mode_.load(); }

    int32_t* array(int64_t offset, int64_t index) const {
        return reinterpret_cast<int32_t*>(setup_.mailbox + uint64_t(offset)) + index;
    }
    int32_t load_flag(int64_t offset, int layer) const {
        return __atomic_load_n(array(offset, int64_t(layer) * FLAG_INTS), __ATOMIC_ACQUIRE);
    }
    void store_flag(int64_t offset, int layer, int32_t value) const {
        __atomic_store_n(array(offset, int64_t(layer) * FLAG_INTS), value, __ATOMIC_RELEASE);
    }
    void evict(int entry);
    void update(int entry, int value) { updates_.push_back({entry, value}); }

    const ConductorSetup setup_;
    const int pairs_max_;
    Policy& policy_;
    Executor* const executor_;
    Link& link_;
    Flights flights_;
    const int64_t record_bytes_;

    // Between the caller and the thread.
    std::atomic<uint32_t> requests_{0}, answered_{0};
    std::atomic<Request> request_{Request::STEP};
    std::atomic<int32_t> wanted_mode_, mode_;
    std::atomic<int64_t> watchdog_ns_, post_ns_;
    std::atomic<bool> link_dead_{false};
    std::mutex mutex_;  // guards the next lines
    std::string failure_, reported_;
    StepCounts published_{};
    std::vector<int64_t> published_layers_;
    std::vector<LayerTimes> published_times_;
    CostModel shown_costs_;
    bool costs_set_ = false;
    int32_t epoch_ = 0, rows_ = 0;

    // The thread's own.
    CostModel costs_;
    Line link_line_, cpu_line_;         // what its constants follow
    int64_t steps_ = 0;                 // since the start
    bool link_measured_ = false, cpu_measured_ = false;  // in this step
    StepCounts counts_{};
    std::vector<int64_t> layer_counts_;
    std::vector<LayerTimes> times_;
    int64_t step_began_ = 0;
    bool failed_ = false, settled_ = true;
    std::vector<uint8_t> unlinked_;     // by layer; see set_unlinked
    std::vector<Need> needs_;
    std::vector<int32_t> need_of_;      // by expert: index into needs_, valid where stamp_ is now
    std::vector<uint32_t> stamp_;
    uint32_t stamp_now_ = 0;
    std::vector<int32_t> next_pair_;    // by pair: the next one of the same expert, -1
    std::vector<int32_t> pinned_;       // slots of the posted layer's hits
    std::vector<uint8_t> wanted_;       // by expert
    std::vector<Miss> misses_;
    std::vector<int32_t> missing_, cuts_;  // needs to share, and their cuts
    std::vector<Part> parts_;
    struct Update {
        int32_t entry, value;
    };
    std::vector<Update> updates_;
    // The CPU's part and the copies that the device waits for.
    int cpu_layer_ = -1, demand_layer_ = -1;
    int64_t cpu_started_ = 0, cpu_records_ = 0, cpu_row_records_ = 0;
    int64_t demand_started_ = 0, demand_records_ = 0;
    bool demand_alone_ = false;         // the link was idle when it was asked for
    uint32_t demand_mark_ = 0;
    bool optimum_due_ = false;
    int32_t optimum_mode_ = HYBRID;     // of the layer that it is due for: CPU where that was not free to fetch
    int64_t piece_ends_ = 0;            // when the piece under way is expected to land
    uint32_t link_seen_ = 0;
    int64_t link_moved_ = 0;            // when the link last completed something or began
    std::thread thread_;                // last
};

}  // namespace ft
