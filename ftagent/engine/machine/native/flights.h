// Experts on their way into slots, in pieces, and what an idle link does next.
//
// A flight has a slot in the policy's table, pinned until all its records have landed. The device's table shows the
// expert only behind the last piece (a word written by the copy stream), so the device meets a miss or complete
// data. Work for an idle link, in this order: look-ahead (experts that the next layer will probably need), then
// backfill (experts that the CPU computed, wholly or in part). It takes free slots only and evicts nobody.
#pragma once

#include <stdint.h>

#include <vector>

#include "link.h"
#include "policy.h"

namespace ft {

enum class Kind : int8_t { NONE, DEMAND, BACKFILL, GUESS };

struct Flight {
    Kind kind = Kind::NONE;
    bool shown = false;   // the device's table has it, or will behind a piece that is under way
    int32_t layer = 0, expert = 0, slot = 0;
    int32_t have = 0;     // records submitted
    int32_t ticket = 0;   // landed[slot] once they are there
    uint32_t mark = 0;    // the submission that carries the last of them
};

// Where experts come from and go to. Addresses of host rows [layers * experts] and device slots [slots].
struct Places {
    int32_t layers, experts, records;
    int64_t record_bytes;
    const uint64_t *rows, *slots;
    uint64_t slot_of, landed;  // device addresses of int32 [layers, experts] and int32 [slots]
};

struct FlightCounts {
    int64_t backfilled, guessed, guess_used, cancelled, bytes;
};

class Flights {
  public:
    Flights(Policy& policy, Link& link, const Places& places, int64_t piece_bytes);

    Flight* find(int slot) { return flights_[slot].kind == Kind::NONE ? nullptr : &flights_[slot]; }
    bool any() const { return !active_.empty(); }
    // The expert must have been placed; its slot is pinned.
    Flight& open(Kind kind, int layer, int expert, int slot);

    // Adds records [have, upto) to the batch, and the ticket behind them. With `show` the device's table too.
    void stage(Flight& flight, int upto, bool show);
    int staged() const { return int(copies_.size()); }
    bool submit();  // the batch; false on a link error

    void retire();                 // lands what has landed
    void cancel(Flight& flight);   // not for one that is complete or shown
    void cancel_partial();         // all that are not complete
    void abandon();                // the link is dead: nothing will land any more

    // What an idle link could do for later: experts of `layer` in order of likelihood, or one that the CPU computed.
    void expect(int layer, const int32_t* experts, int count);
    // The layer's routing is known: drops its unfinished guesses but for those that `wanted` ([experts]) marks.
    void resolve(int layer, const uint8_t* wanted);
    void offer_backfill(int layer, int expert);
    // An expert leaves with the plan that is being written. Until the next post it must not begin to come back: the
    // device could apply the plan behind the word that shows it.
    void evicted(int entry) { evicted_at_[entry] = posts_; }
    void next_post() { posts_++; }
    void forget_candidates();
    bool wants_slots() const { return guess_at_ < int(guesses_.size()) || backfill_count_ > 0; }
    // The next piece onto an idle link. False: nothing to do, or a link error.
    bool advance();
    bool pending() const { return advance_may_help_; }
    void stir() { advance_may_help_ = true; }  // slots or unfinished experts have come

    // The first use of an expert that came without being waited for.
    void used(int slot);
    FlightCounts counts{};

  private:
    struct Candidate {
        int32_t layer, expert;
        int64_t step;
    };
    Flight* unfinished(Kind kind);
    Flight* begin(Kind kind, int layer, int expert);
    bool may_begin(int layer, int expert) const;
    Flight* begin_guess();
    Flight* begin_backfill();
    void close(Flight& flight);

    Policy& policy_;
    Link& link_;
    const Places places_;
    const int32_t piece_;  // records
    std::vector<Flight> flights_;          // by slot
    std::vector<int32_t> active_;          // slots with a flight
    std::vector<int32_t> tickets_;         // by slot
    std::vector<Kind> came_by_;            // by slot: how its expert came, until its first use
    std::vector<Copy> copies_;
    std::vector<Write> writes_;
    std::vector<int32_t> guesses_;         // experts of guess_layer_
    int32_t guess_layer_ = -1, guess_at_ = 0;
    std::vector<Candidate> backfill_;      // ring
    int32_t backfill_first_ = 0, backfill_count_ = 0;
    std::vector<uint32_t> evicted_at_;     // by layer * experts + expert: the post at which it last left
    uint32_t posts_ = 1;
    uint32_t seen_ = 0;                    // link's completed at the last retire
    bool advance_may_help_ = false;
};

}  // namespace ft
