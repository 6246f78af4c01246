#include "flights.h"

#include <algorithm>

namespace ft {
namespace {

constexpr int BACKLOG = 64;  // experts that wait for backfill; the oldest makes room

int32_t next_ticket(int32_t ticket) {
    const int32_t next = int32_t(uint32_t(ticket) + 1);
    return next ? next : 1;  // 0 means no wait
}

}  // namespace

Flights::Flights(Policy& policy, Link& link, const Places& places, int64_t piece_bytes)
    : policy_(policy),
      link_(link),
      places_(places),
      piece_(int32_t(std::clamp<int64_t>(piece_bytes / places.record_bytes, 1, places.records))),
      flights_(policy.slots()),
      tickets_(policy.slots(), 0),
      came_by_(policy.slots(), Kind::NONE),
      backfill_(BACKLOG),
      evicted_at_(size_t(places.layers) * places.experts, 0),
      seen_(link.completed()) {
    active_.reserve(policy.slots());
    copies_.reserve(256);
    writes_.reserve(512);
    guesses_.reserve(places.experts);
}

Flight& Flights::open(Kind kind, int layer, int expert, int slot) {
    Flight& flight = flights_[slot];
    flight = Flight{};
    flight.kind = kind;
    flight.layer = layer;
    flight.expert = expert;
    flight.slot = slot;
    policy_.pin(slot);
    active_.push_back(slot);
    came_by_[slot] = kind;
    return flight;
}

void Flights::stage(Flight& flight, int upto, bool show) {
    const int64_t first = flight.have * places_.record_bytes, bytes = (upto - flight.have) * places_.record_bytes;
    const uint64_t row = places_.rows[int64_t(flight.layer) * places_.experts + flight.expert];
    const uint64_t target = places_.slots[flight.slot];
    copies_.push_back({target + uint64_t(first), reinterpret_cast<const void*>(row + uint64_t(first)), bytes});
    if (show) {
        const uint64_t entry = uint64_t(flight.layer) * uint64_t(places_.experts) + uint64_t(flight.expert);
        writes_.push_back({places_.slot_of + 4 * entry, uint32_t(flight.slot)});
        flight.shown = true;
    }
    flight.ticket = tickets_[flight.slot] = next_ticket(tickets_[flight.slot]);
    writes_.push_back({places_.landed + 4 * uint64_t(flight.slot), uint32_t(flight.ticket)});
    flight.have = upto;
    flight.mark = link_.submitted() + 1;
    counts.bytes += bytes;
}

bool Flights::submit() {
    const bool sent = link_.submit(copies_.data(), int(copies_.size()), writes_.data(), int(writes_.size()));
    copies_.clear();
    writes_.clear();
    return sent;
}

void Flights::close(Flight& flight) {
    active_.erase(std::find(active_.begin(), active_.end(), flight.slot));
    flight.kind = Kind::NONE;
    policy_.unpin(flight.slot);
}

void Flights::retire() {
    if (link_.completed() == seen_) return;
    seen_ = link_.completed();
    for (size_t i = 0; i < active_.size();) {
        Flight& flight = flights_[active_[i]];
        if (flight.have < places_.records || !link_.reached(flight.mark)) {
            i++;
            continue;
        }
        if (flight.kind == Kind::BACKFILL) counts.backfilled++;
        close(flight);
    }
}

void Flights::cancel(Flight& flight) {
    // Pieces under way may still land: whatever comes into the slot later comes behind them in the same stream.
    const int layer = flight.layer, expert = flight.expert;
    came_by_[flight.slot] = Kind::NONE;
    close(flight);
    policy_.remove(layer, expert);
    counts.cancelled++;
}

void Flights::cancel_partial() {
    for (size_t i = 0; i < active_.size();) {
        Flight& flight = flights_[active_[i]];
        if (flight.have < places_.records)
            cancel(flight);
        else
            i++;
    }
}

void Flights::abandon() {
    forget_candidates();
    while (!active_.empty()) cancel(flights_[active_.back()]);
}

void Flights::expect(int layer, const int32_t* experts, int count) {
    guess_layer_ = layer;
    guess_at_ = 0;
    guesses_.clear();
    for (int i = 0; i < count; i++) {
        if (experts[i] < 0 || experts[i] >= places_.experts || policy_.lookup(layer, experts[i]) >= 0) continue;
        if (std::find(guesses_.begin(), guesses_.end(), experts[i]) == guesses_.end()) guesses_.push_back(experts[i]);
    }
    advance_may_help_ = true;
}

void Flights::resolve(int layer, const uint8_t* wanted) {
    if (guess_layer_ == layer) guess_at_ = int32_t(guesses_.size());
    for (size_t i = 0; i < active_.size();) {
        Flight& flight = flights_[active_[i]];
        const bool stale = flight.kind == Kind::GUESS && flight.layer == layer && flight.have < places_.records;
        if (stale && !wanted[flight.expert])
            cancel(flight);
        else
            i++;
    }
}

void Flights::offer_backfill(int layer, int expert) {
    if (backfill_count_ == BACKLOG) {
        backfill_first_ = (backfill_first_ + 1) % BACKLOG;
        backfill_count_--;
    }
    backfill_[(backfill_first_ + backfill_count_++) % BACKLOG] = {layer, expert, policy_.now()};
    advance_may_help_ = true;
}

void Flights::forget_candidates() {
    guesses_.clear();
    guess_at_ = 0;
    backfill_count_ = 0;
}

Flight* Flights::unfinished(Kind kind) {
    for (int slot : active_)
        if (flights_[slot].kind == kind && flights_[slot].have < places_.records) return &flights_[slot];
    return nullptr;
}

Flight* Flights::begin(Kind kind, int layer, int expert) {
    Placement placement;
    policy_.place(layer, expert, false, &placement);  // a slot is free, so nobody leaves
    return &open(kind, layer, expert, placement.slot);
}

bool Flights::may_begin(int layer, int expert) const {
    return policy_.lookup(layer, expert) < 0 && evicted_at_[size_t(layer) * places_.experts + expert] != posts_;
}

Flight* Flights::begin_guess() {
    while (guess_at_ < int(guesses_.size()) && policy_.free_slots() > 0) {
        const int expert = guesses_[guess_at_++];
        if (!may_begin(guess_layer_, expert)) continue;
        counts.guessed++;
        return begin(Kind::GUESS, guess_layer_, expert);
    }
    return nullptr;
}

Flight* Flights::begin_backfill() {
    while (backfill_count_ > 0 && policy_.free_slots() > 0) {
        const Candidate next = backfill_[backfill_first_];
        backfill_first_ = (backfill_first_ + 1) % BACKLOG;
        backfill_count_--;
        // Needed more than a step ago, it is worth no more than what had to leave for it.
        const bool old = next.step + 1 < policy_.now();
        if (old || !may_begin(next.layer, next.expert)) continue;
        return begin(Kind::BACKFILL, next.layer, next.expert);
    }
    return nullptr;
}

bool Flights::advance() {
    if (!advance_may_help_) return false;
    Flight* flight = unfinished(Kind::GUESS);
    if (!flight) flight = begin_guess();
    if (!flight) flight = unfinished(Kind::BACKFILL);
    if (!flight) flight = begin_backfill();
    if (!flight) {
        advance_may_help_ = false;
        return false;
    }
    const int upto = std::min(flight->have + piece_, places_.records);
    stage(*flight, upto, upto == places_.records);
    return submit();
}

void Flights::used(int slot) {
    if (came_by_[slot] == Kind::GUESS) counts.guess_used++;
    came_by_[slot] = Kind::NONE;
}

}  // namespace ft
