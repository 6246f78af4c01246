#include "policy.h"

#include <stdio.h>

#include <algorithm>

namespace ft {

Policy::Policy(int layers, int experts, int slots, int floor)
    : layers_(layers), experts_(experts), slots_(slots), floor_(floor), capacity_(std::min(slots, experts)) {
    const size_t keys = size_t(layers) * experts;
    slot_of_.assign(keys, -1);
    owner_.assign(slots, -1);
    pins_.assign(slots, 0);
    free_.resize(slots);
    for (int i = 0; i < slots; i++) free_[i] = slots - 1 - i;
    held_.assign(layers, 0);
    size_.assign(layers, 0);
    last_use_.assign(slots, 0);
    value_.assign(keys, 0);
    value_step_.assign(keys, 0);
    heaps_.assign(size_t(layers) * capacity_, -1);
    place_.assign(slots, -1);
    while (leaves_ < layers) leaves_ *= 2;
    best_.assign(2 * leaves_, -1);
}

int64_t Policy::decayed(int key) const {
    const int64_t halvings = (now_ - value_step_[key]) / HALF_LIFE;
    return halvings > 62 ? 0 : value_[key] >> halvings;
}

int64_t Policy::count(int key, int64_t uses) {
    value_[key] = decayed(key) + uses;
    value_step_[key] = now_;
    return value_[key];
}

bool Policy::before(int a, int b) const {
    if (last_use_[a] != last_use_[b]) return last_use_[a] < last_use_[b];
    const int64_t frequency_a = value_[owner_[a]], frequency_b = value_[owner_[b]];
    return frequency_a != frequency_b ? frequency_a < frequency_b : a < b;
}

void Policy::sift_up(int layer, int place) {
    int* const slots = heap(layer);
    const int slot = slots[place];
    while (place > 0) {
        const int parent = (place - 1) / 2;
        if (!before(slot, slots[parent])) break;
        slots[place] = slots[parent];
        place_[slots[place]] = place;
        place = parent;
    }
    slots[place] = slot;
    place_[slot] = place;
}

void Policy::sift_down(int layer, int place) {
    int* const slots = heap(layer);
    const int size = size_[layer], slot = slots[place];
    for (;;) {
        int child = 2 * place + 1;
        if (child >= size) break;
        if (child + 1 < size && before(slots[child + 1], slots[child])) child++;
        if (!before(slots[child], slot)) break;
        slots[place] = slots[child];
        place_[slots[place]] = place;
        place = child;
    }
    slots[place] = slot;
    place_[slot] = place;
}

void Policy::insert(int slot) {
    const int layer = owner_[slot] / experts_, place = size_[layer]++;
    heap(layer)[place] = slot;
    place_[slot] = place;
    sift_up(layer, place);
    refresh(layer);
}

void Policy::erase(int slot) {
    const int layer = owner_[slot] / experts_, place = place_[slot], last = --size_[layer];
    int* const slots = heap(layer);
    place_[slot] = -1;
    if (place != last) {
        const int mover = slots[last];
        slots[place] = mover;
        place_[mover] = place;
        sift_up(layer, place);
        sift_down(layer, place_[mover]);
    }
    refresh(layer);
}

void Policy::moved(int slot) {
    if (place_[slot] < 0) return;
    const int layer = owner_[slot] / experts_;
    sift_up(layer, place_[slot]);
    sift_down(layer, place_[slot]);
    refresh(layer);
}

int Policy::better(int a, int b) const {
    if (a < 0 || b < 0) return std::max(a, b);
    return before(heap(a)[0], heap(b)[0]) ? a : b;
}

void Policy::refresh(int layer) {
    int node = leaves_ + layer;
    best_[node] = size_[layer] > 0 && held_[layer] > floor_ ? layer : -1;
    for (node /= 2; node > 0; node /= 2) best_[node] = better(best_[2 * node], best_[2 * node + 1]);
}

int Policy::victim(int layer) const {
    // best_[1] is the root, also when there is a single leaf.
    const int own = size_[layer] > 0 ? layer : -1;
    const int best = better(best_[1], own);
    return best < 0 ? -1 : heap(best)[0];
}

void Policy::vacate(int slot) {
    const int owner = owner_[slot], layer = owner / experts_;
    if (place_[slot] >= 0) erase(slot);
    slot_of_[owner] = -1;
    owner_[slot] = -1;
    held_[layer]--;
    refresh(layer);
}

void Policy::use(int layer, int expert) {
    const int slot = lookup(layer, expert);
    last_use_[slot] = now_;
    count(key(layer, expert), ONE_USE);
    moved(slot);
}

void Policy::miss(int layer, int expert) { count(key(layer, expert), ONE_USE); }

bool Policy::place(int layer, int expert, bool used, Placement* out) {
    out->evicted = -1;
    if (!free_.empty()) {
        out->slot = free_.back();
        free_.pop_back();
    } else {
        out->slot = victim(layer);
        if (out->slot < 0) return false;
        out->evicted = owner_[out->slot];
        vacate(out->slot);
    }
    const int slot = out->slot;
    owner_[slot] = key(layer, expert);
    slot_of_[owner_[slot]] = slot;
    held_[layer]++;
    last_use_[slot] = now_;
    count(owner_[slot], used ? ONE_USE : 0);
    insert(slot);
    return true;
}

bool Policy::evict(int layer, const Worth* worth, Placement* out) {
    const int slot = victim(layer);
    if (slot < 0) return false;
    const Worth mine{last_use_[slot], value_[owner_[slot]]};
    if (worth && !(mine < *worth)) return false;
    *out = {slot, owner_[slot]};
    vacate(slot);
    free_.push_back(slot);
    return true;
}

int Policy::remove(int layer, int expert) {
    const int slot = lookup(layer, expert);
    vacate(slot);
    free_.push_back(slot);
    return slot;
}

void Policy::pin(int slot) {
    if (pins_[slot]++ == 0 && place_[slot] >= 0) erase(slot);
}

bool Policy::unpin(int slot) {
    if (pins_[slot] == 0) return false;
    if (--pins_[slot] == 0 && owner_[slot] >= 0) insert(slot);
    return true;
}

Worth Policy::worth(int layer, int expert) const {
    const int at = key(layer, expert);
    return {value_step_[at], value_[at]};
}

void Policy::frequencies(int64_t* out) const {
    for (int at = 0; at < layers_ * experts_; at++) out[at] = decayed(at);
}

void Policy::restore(const int64_t* frequencies) {
    for (int at = 0; at < layers_ * experts_; at++) {
        value_[at] = frequencies[at];
        value_step_[at] = now_;
    }
    for (int layer = 0; layer < layers_; layer++)
        for (int place = size_[layer] / 2 - 1; place >= 0; place--) sift_down(layer, place);
    for (int layer = 0; layer < layers_; layer++) refresh(layer);
}

bool Policy::check_integrity(char* message, size_t size) const {
    std::vector<int> held(layers_, 0), seen(slots_, 0);
    for (int at = 0; at < layers_ * experts_; at++) {
        const int slot = slot_of_[at];
        if (slot < 0) continue;
        held[at / experts_]++;
        if (owner_[slot] != at)
            return snprintf(message, size, "slot %d: owner %d, table %d", slot, owner_[slot], at), false;
    }
    for (int slot : free_) {
        if (seen[slot]++) return snprintf(message, size, "slot %d is free twice", slot), false;
        if (owner_[slot] >= 0 || pins_[slot])
            return snprintf(message, size, "free slot %d is owned or pinned", slot), false;
    }
    int total = int(free_.size());
    for (int layer = 0; layer < layers_; layer++) {
        total += held[layer];
        if (held[layer] != held_[layer])
            return snprintf(message, size, "layer %d holds %d, counted %d", layer, held[layer], held_[layer]), false;
        for (int place = 0; place < size_[layer]; place++) {
            const int slot = heap(layer)[place];
            const bool ordered = place == 0 || !before(slot, heap(layer)[(place - 1) / 2]);
            if (!ordered || place_[slot] != place || pins_[slot] || owner_[slot] / experts_ != layer)
                return snprintf(message, size, "layer %d: its heap is wrong at slot %d", layer, slot), false;
        }
    }
    if (total != slots_) return snprintf(message, size, "%d slots held or free of %d", total, slots_), false;
    for (int slot = 0; slot < slots_; slot++)
        if (owner_[slot] >= 0 && (place_[slot] >= 0) != (pins_[slot] == 0))
            return snprintf(message, size, "slot %d is in a heap and pinned, or neither", slot), false;
    return true;
}

}  // namespace ft

#define FT_API extern "C" __attribute__((visibility("default")))

using ft::Policy;

namespace {
Policy* policy(void* handle) { return static_cast<Policy*>(handle); }
}  // namespace

FT_API void* ft_policy_new(int layers, int experts, int slots, int floor) {
    return new Policy(layers, experts, slots, floor);
}
FT_API void ft_policy_free(void* handle) { delete policy(handle); }
FT_API int ft_policy_resident(void* handle) { return policy(handle)->resident(); }
FT_API int ft_policy_layer_resident(void* handle, int layer) { return policy(handle)->layer_resident(layer); }
FT_API void ft_policy_begin_step(void* handle) { policy(handle)->begin_step(); }
FT_API int ft_policy_lookup(void* handle, int layer, int expert) { return policy(handle)->lookup(layer, expert); }
FT_API void ft_policy_layer_slots(void* handle, int layer, int32_t* slots) {
    for (int expert = 0; expert < policy(handle)->experts(); expert++) slots[expert] = policy(handle)->lookup(layer, expert);
}
FT_API void ft_policy_use(void* handle, int layer, int expert) { policy(handle)->use(layer, expert); }
FT_API void ft_policy_miss(void* handle, int layer, int expert) { policy(handle)->miss(layer, expert); }
FT_API int ft_policy_place(void* handle, int layer, int expert, int used, ft::Placement* out) {
    return policy(handle)->place(layer, expert, used != 0, out);
}
FT_API int ft_policy_evict(void* handle, int layer, const ft::Worth* worth, ft::Placement* out) {
    return policy(handle)->evict(layer, worth, out);
}
FT_API int ft_policy_remove(void* handle, int layer, int expert) { return policy(handle)->remove(layer, expert); }
FT_API int ft_policy_pinned(void* handle, int slot) { return policy(handle)->pinned(slot); }
FT_API void ft_policy_pin(void* handle, int slot) { policy(handle)->pin(slot); }
FT_API int ft_policy_unpin(void* handle, int slot) { return policy(handle)->unpin(slot); }
FT_API int64_t ft_policy_frequency(void* handle, int layer, int expert) {
    return policy(handle)->frequency(layer, expert);
}
FT_API void ft_policy_worth(void* handle, int layer, int expert, ft::Worth* out) {
    *out = policy(handle)->worth(layer, expert);
}
FT_API void ft_policy_frequencies(void* handle, int64_t* out) { policy(handle)->frequencies(out); }
FT_API void ft_policy_restore(void* handle, const int64_t* values) { policy(handle)->restore(values); }
FT_API int ft_policy_check(void* handle, char* message, int size) {
    return policy(handle)->check_integrity(message, size_t(size));
}
