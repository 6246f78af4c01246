// Which expert sits in which device slot: the decisions of experts/policy.py (ExpertPolicy), on integers.
//
// The victim is the expert whose last use lies furthest back; among equals the one used less often (a frequency that
// halves every HALF_LIFE steps), then the lower slot. A layer keeps `floor` experts that other layers cannot take.
// Pinned slots are never taken. Every operation takes O(log n) and allocates nothing. One thread at a time.
//
// Structure: each layer has an indexed binary heap of its unpinned residents, the best victim on top; a tournament
// over the layers that hold more than their floor gives the best victim of all. Slots that are pinned are in no heap.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <vector>

namespace ft {

constexpr int64_t HALF_LIFE = 64;   // steps
constexpr int64_t ONE_USE = 1 << 16;  // one use, in the fixed point of the decayed frequency

struct Placement {
    int32_t slot;
    int32_t evicted;  // layer * experts + expert of who had to leave, -1 for nobody
};

struct Worth {
    int64_t step, frequency;
    bool operator<(const Worth& other) const {
        return step != other.step ? step < other.step : frequency < other.frequency;
    }
};

class Policy {
  public:
    // floor * layers must not exceed slots.
    Policy(int layers, int experts, int slots, int floor);

    int layers() const { return layers_; }
    int experts() const { return experts_; }
    int slots() const { return slots_; }
    int resident() const { return slots_ - int(free_.size()); }
    int free_slots() const { return int(free_.size()); }
    int layer_resident(int layer) const { return held_[layer]; }
    int64_t now() const { return now_; }

    void begin_step() { now_++; }
    int lookup(int layer, int expert) const { return slot_of_[key(layer, expert)]; }  // -1: not resident
    int owner(int slot) const { return owner_[slot]; }                                // -1: free
    bool pinned(int slot) const { return pins_[slot] > 0; }
    void use(int layer, int expert);                                // must be resident
    void miss(int layer, int expert);                               // must not be resident
    bool place(int layer, int expert, bool used, Placement* out);   // must not be resident
    bool evict(int layer, const Worth* worth, Placement* out);      // worth: null for whatever leaves
    int remove(int layer, int expert);                              // must be resident and not pinned
    void pin(int slot);
    bool unpin(int slot);  // false: was not pinned
    int64_t frequency(int layer, int expert) const { return decayed(key(layer, expert)); }
    Worth worth(int layer, int expert) const;
    void frequencies(int64_t* out) const;      // [layers * experts]
    void restore(const int64_t* frequencies);  // [layers * experts]
    // False with one line in `message` when table, owners, heaps and free list disagree.
    bool check_integrity(char* message, size_t size) const;

  private:
    int key(int layer, int expert) const { return layer * experts_ + expert; }
    int64_t decayed(int key) const;
    int64_t count(int key, int64_t uses);
    bool before(int a, int b) const;  // slot a is a better victim than slot b
    int* heap(int layer) { return heaps_.data() + size_t(layer) * capacity_; }
    const int* heap(int layer) const { return heaps_.data() + size_t(layer) * capacity_; }
    void sift_up(int layer, int place);
    void sift_down(int layer, int place);
    void insert(int slot);
    void erase(int slot);
    void moved(int slot);        // the slot's key grew or shrank
    void refresh(int layer);     // the layer's best victim or its number of residents changed
    int victim(int layer) const; // -1: none
    void vacate(int slot);
    int better(int a, int b) const;  // of two layers in the tournament, -1 for none

    const int layers_, experts_, slots_, floor_, capacity_;
    int64_t now_ = 0;
    std::vector<int32_t> slot_of_, owner_, pins_, free_, held_, size_;
    std::vector<int64_t> last_use_;              // of each slot
    std::vector<int64_t> value_, value_step_;    // of each expert: frequency at its last use, and that step
    std::vector<int32_t> heaps_, place_;         // heap of each layer; place of each slot in its heap, -1
    int leaves_ = 1;
    std::vector<int32_t> best_;                  // tournament over layers: [2 * leaves]
};

}  // namespace ft
