// Conductor: the answer to one posted layer.
#include <stdio.h>

#include <algorithm>

#include "conductor.h"
#include "team.h"

namespace ft {

void Conductor::answer(int layer) {
    find_optimum();  // of the layer before, if there was no time yet
    bool parked = false;
    if (!gather(layer) || !classify(layer, &parked)) {
        refuse(layer);
        return;
    }
    flights_.resolve(layer, wanted_.data());
    bool answered = true;
    if (parked) {
        split(layer);
        answered = assign(layer) && start_cpu(layer) && start_link(layer);
        if (answered) {
            keep_reserve(layer);
            write_plan(layer);
        }
    }
    unpin_hits();
    if (!answered) refuse(layer);
    for (const Need& need : needs_) wanted_[need.expert] = 0;
    if (answered) look_ahead(layer);
    flights_.stir();
}

// The device goes on with what it has; whoever waits for the CPU must not.
void Conductor::refuse(int layer) {
    if (cpu_layer_ < 0) store_flag(setup_.offsets.done, layer, -epoch_);
    store_flag(setup_.offsets.planned, layer, -epoch_);
}

// Unique experts of the posted pairs.
bool Conductor::gather(int layer) {
    needs_.clear();
    missing_.clear();
    misses_.clear();
    updates_.clear();
    stamp_now_++;
    flights_.next_post();
    const int pairs = rows_ * setup_.per_token;
    const int32_t* const ids = array(setup_.offsets.ids, int64_t(layer) * pairs_max_);
    const int32_t* const seen = array(setup_.offsets.seen, int64_t(layer) * pairs_max_);
    for (int pair = 0; pair < pairs; pair++) {
        const int expert = ids[pair];
        if (expert < 0) continue;
        if (expert >= setup_.experts || seen[pair] >= policy_.slots()) {
            fail("layer " + std::to_string(layer) + ": the device asks for expert " + std::to_string(expert) +
                 " in slot " + std::to_string(seen[pair]) + ", which do not exist");
            return false;
        }
        add_pair(pair, expert, seen[pair]);
    }
    return true;
}

void Conductor::add_pair(int pair, int expert, int seen) {
    next_pair_[pair] = -1;
    if (stamp_[expert] != stamp_now_) {
        stamp_[expert] = stamp_now_;
        need_of_[expert] = int32_t(needs_.size());
        needs_.push_back({expert, 1, pair, seen, 0, setup_.intermediate, 0, seen >= 0, true});
        return;
    }
    Need& need = needs_[need_of_[expert]];
    need.rows++;
    if (seen >= 0) {
        need.slot = seen;
        need.hit = true;
    }
    next_pair_[pair] = need.pair;  // order does not matter: every pair has its own y
    need.pair = pair;
}

// Hits, what has arrived since or is on its way, and what is missing. Counts uses; pins what the layer uses.
bool Conductor::classify(int layer, bool* parked) {
    const int32_t* const seen = array(setup_.offsets.seen, int64_t(layer) * pairs_max_);
    int hits = 0;
    for (Need& need : needs_) {
        for (int pair = need.pair; pair >= 0; pair = next_pair_[pair]) *parked |= seen[pair] < 0;
        const int slot = policy_.lookup(layer, need.expert);
        wanted_[need.expert] = 1;
        hits += need.hit;
        if (need.hit && slot != need.slot) {
            fail("layer " + std::to_string(layer) + ": the device finds expert " + std::to_string(need.expert) +
                 " in slot " + std::to_string(need.slot) + ", the host in " + std::to_string(slot));
            unpin_hits();
            for (const Need& other : needs_) wanted_[other.expert] = 0;
            return false;
        }
        if (slot < 0) {
            policy_.miss(layer, need.expert);
        } else {
            policy_.use(layer, need.expert);
            flights_.used(slot);
            policy_.pin(slot);
            pinned_.push_back(slot);
        }
        if (need.hit) continue;
        need.slot = slot;
        const Flight* const flight = slot < 0 ? nullptr : flights_.find(slot);
        need.have = flight ? flight->have : slot < 0 ? 0 : setup_.intermediate;
        need.ticket = flight ? flight->ticket : 0;
        need.fixed = need.have == setup_.intermediate;
        if (need.fixed) continue;
        missing_.push_back(int32_t(&need - needs_.data()));
        misses_.push_back({need.rows, policy_.frequency(layer, need.expert), need.have});
    }
    counts_.hits += hits;
    counts_.misses += int64_t(needs_.size()) - hits;
    layer_counts_[layer] += hits;
    layer_counts_[setup_.layers + layer] += int64_t(needs_.size()) - hits;
    return true;
}

void Conductor::split(int layer) {
    const int count = int(misses_.size());
    const int64_t now = now_ns();
    const int64_t busy = link_.idle() ? 0 : std::max<int64_t>(piece_ends_ - now, 0);
    const SplitInput input{setup_.intermediate, setup_.grain, busy, 0, layer_mode(layer), MIN_GAIN_NS};
    cuts_.resize(count);
    choose_split(costs_, misses_.data(), count, input, cuts_.data());
    for (int i = 0; i < count; i++) needs_[missing_[i]].cut = cuts_[i];
}

// Slots for what is fetched. What finds none is computed by the CPU.
bool Conductor::assign(int layer) {
    for (int i : missing_) {
        Need& need = needs_[i];
        if (need.slot >= 0) {
            // It was on its way for later; from now on it is waited for, or ends as backfill.
            Flight* const flight = flights_.find(need.slot);
            flight->kind = need.cut == setup_.intermediate ? Kind::DEMAND : Kind::BACKFILL;
        } else if (need.cut > 0 && !take_slot(layer, need)) {
            need.cut = 0;
        }
        if (need.cut < setup_.intermediate && (!executor_ || executor_->broken())) {
            fail("layer " + std::to_string(layer) + ": no slot is free for expert " + std::to_string(need.expert) +
                 " and there is no CPU side to compute it");
            return false;
        }
    }
    return true;
}

bool Conductor::take_slot(int layer, Need& need) {
    if (policy_.free_slots() == 0 && int(updates_.size()) == MAX_UPDATES) return false;
    Placement placement;
    if (!policy_.place(layer, need.expert, false, &placement)) return false;
    if (placement.evicted >= 0) evict(placement.evicted);
    need.slot = placement.slot;
    flights_.open(need.cut == setup_.intermediate ? Kind::DEMAND : Kind::BACKFILL, layer, need.expert, need.slot);
    return true;
}

bool Conductor::start_cpu(int layer) {
    parts_.clear();
    cpu_records_ = cpu_row_records_ = 0;
    float* const y = reinterpret_cast<float*>(setup_.mailbox + uint64_t(setup_.offsets.y));
    for (int i : missing_) {
        const Need& need = needs_[i];
        const int64_t records = setup_.intermediate - need.cut;
        if (records == 0) continue;
        const uint64_t row = setup_.rows_at[int64_t(layer) * setup_.experts + need.expert];
        for (int pair = need.pair; pair >= 0; pair = next_pair_[pair])
            parts_.push_back({reinterpret_cast<const void*>(row), need.cut, setup_.intermediate,
                              pair / setup_.per_token, y + int64_t(pair) * setup_.hidden});
        cpu_records_ += records;
        cpu_row_records_ += records * need.rows;
        counts_.cpu_experts++;
    }
    if (parts_.empty()) return true;
    const void* const x = reinterpret_cast<const void*>(setup_.mailbox + uint64_t(setup_.offsets.x));
    volatile uint32_t* const done =
        reinterpret_cast<volatile uint32_t*>(array(setup_.offsets.done, int64_t(layer) * FLAG_INTS));
    if (!executor_->start(parts_.data(), int(parts_.size()), x, done, uint32_t(epoch_))) {
        fail("layer " + std::to_string(layer) + ": the CPU's workers do not take work");
        return false;
    }
    cpu_layer_ = layer;
    cpu_started_ = now_ns();
    counts_.bytes_cpu += cpu_records_ * record_bytes_;
    return true;
}

bool Conductor::start_link(int layer) {
    const int records = setup_.intermediate;
    demand_records_ = 0;
    int insertions = 0;
    for (int i : missing_) insertions += needs_[i].cut == records;
    const bool in_plan = int(updates_.size()) + insertions <= MAX_UPDATES;
    const bool was_idle = link_.idle();
    for (int i : missing_) {
        Need& need = needs_[i];
        counts_.records_missed += records - need.have;
        if (need.cut > need.have) {
            Flight* const flight = flights_.find(need.slot);
            const bool whole = need.cut == records;
            demand_records_ += need.cut - need.have;
            flights_.stage(*flight, need.cut, whole && !in_plan);
            if (whole && in_plan) {
                update(layer * setup_.experts + need.expert, need.slot);
                flight->shown = true;
            }
            counts_.fetched += whole;
            need.ticket = flight->ticket;
        }
        if (need.cut > 0 && need.cut < records) counts_.split++;
        if (need.cut == 0 && layer_mode(layer) == HYBRID) flights_.offer_backfill(layer, need.expert);
    }
    optimum_due_ = !missing_.empty();
    optimum_mode_ = unlinked_[layer] ? CPU : HYBRID;
    if (demand_records_ == 0) return true;
    demand_alone_ = was_idle;
    if (was_idle) link_moved_ = now_ns();
    demand_started_ = now_ns();
    if (!flights_.submit()) {
        link_failed(layer);
        return false;
    }
    demand_mark_ = link_.submitted();
    demand_layer_ = layer;
    counts_.records_fetched += demand_records_;
    return true;
}

// Frees slots for look-ahead and backfill while the device waits, if something waits for them and what leaves was
// not used in this step.
void Conductor::keep_reserve(int layer) {
    const int32_t mode = mode_;
    if (mode == CPU || (!flights_.wants_slots() && setup_.guesses == 0)) return;
    const Worth worth{policy_.now(), 0};
    Placement placement;
    while (policy_.free_slots() < setup_.reserve && int(updates_.size()) < MAX_UPDATES &&
           policy_.evict(layer, &worth, &placement))
        evict(placement.evicted);
}

void Conductor::evict(int entry) {
    update(entry, -1);
    flights_.evicted(entry);
    counts_.evictions++;
}

void Conductor::write_plan(int layer) {
    const MailboxOffsets& at = setup_.offsets;
    const int64_t base = int64_t(layer) * pairs_max_;
    int32_t* const slot = array(at.slot, base);
    int32_t* const cut = array(at.cut, base);
    int32_t* const ticket = array(at.ticket, base);
    for (int pair = 0; pair < rows_ * setup_.per_token; pair++) {
        slot[pair] = -1;
        cut[pair] = setup_.intermediate;
        ticket[pair] = 0;
    }
    for (const Need& need : needs_) {
        for (int pair = need.pair; pair >= 0; pair = next_pair_[pair]) {
            slot[pair] = need.slot;
            cut[pair] = need.cut;
            ticket[pair] = need.cut > 0 ? need.ticket : 0;
        }
    }
    int32_t* const index = array(at.update_index, int64_t(layer) * MAX_UPDATES);
    int32_t* const value = array(at.update_value, int64_t(layer) * MAX_UPDATES);
    for (size_t i = 0; i < updates_.size(); i++) {
        index[i] = updates_[i].entry;
        value[i] = updates_[i].value;
    }
    *array(at.updates, layer) = int32_t(updates_.size());
    store_flag(at.planned, layer, epoch_);
}

void Conductor::look_ahead(int layer) {
    if (setup_.guesses == 0 || layer + 1 == setup_.layers || layer_mode(layer + 1) == CPU) return;
    const int count = rows_ * setup_.guesses;
    flights_.expect(layer + 1, array(setup_.offsets.guess, int64_t(layer) * setup_.rows * setup_.guesses), count);
}

void Conductor::unpin_hits() {
    for (int slot : pinned_) policy_.unpin(slot);
    pinned_.clear();
}

int32_t Conductor::effective(int32_t mode) const {
    const bool cpu = executor_ && !executor_->broken(), link = !link_dead_ && link_.error().empty();
    if (mode == HYBRID && cpu && link) return HYBRID;
    if (mode == CPU) return cpu ? CPU : OFFLOAD;
    return link ? OFFLOAD : CPU;
}

}  // namespace ft
