#include "team.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace ft {
namespace {

constexpr int64_t kSpinNs = 2'000'000;
// Where there are not more cores than workers, whoever spins takes a core from one who works.
constexpr int64_t kCrowdedSpinNs = 50'000;
constexpr int kSpinsPerClock = 64;

timespec to_timespec(int64_t ns) { return {time_t(ns / 1'000'000'000), long(ns % 1'000'000'000)}; }

// Sleep while *word == expected, for at most `ns`. True when woken, or when there was no need to sleep.
bool futex_wait(std::atomic<uint32_t>& word, uint32_t expected, int64_t ns) {
    const timespec limit = to_timespec(ns);
    return syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, expected, &limit, nullptr, 0) == 0 || errno == EAGAIN;
}

void futex_wake(std::atomic<uint32_t>& word) {
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

// Spin until ready() or `ns` are over; the result of ready().
template <class Ready>
bool spin(Ready ready, int64_t ns) {
    const int64_t end = now_ns() + ns;
    do {
        for (int i = 0; i < kSpinsPerClock; ++i) {
            if (ready()) return true;
            relax();
        }
    } while (now_ns() < end);
    return ready();
}

// Sleep `ns`, whatever signals come.
void doze(int64_t ns) {
    timespec left = to_timespec(ns);
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}

}  // namespace

int64_t now_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return int64_t(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

Team::Team(int threads, const int* cores) : threads_(threads < 1 ? 1 : threads) {
    cpu_set_t mine;
    CPU_ZERO(&mine);
    sched_getaffinity(0, sizeof mine, &mine);
    spin_ns_ = threads_ < CPU_COUNT(&mine) ? kSpinNs : kCrowdedSpinNs;
    seats_ = new Seat[threads_];
    int core = -1;
    for (int worker = 0; worker < threads_; ++worker) {
        for (++core; core < CPU_SETSIZE && !CPU_ISSET(core, &mine); ++core) {
        }
        Seat& seat = seats_[worker];
        seat.team = this;
        seat.worker = worker;
        seat.core = cores ? cores[worker] : core < CPU_SETSIZE ? core : -1;
        seat.reached.store(0);
    }
    // Workers take no signals: those belong to the program's own threads.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int made = 0;
    while (made < threads_ && pthread_create(&seats_[made].thread, nullptr, enter, &seats_[made]) == 0) ++made;
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    threads_ = made;
}

bool Team::release(Team* team) {
    const bool whole = !team->broken();
    team->stop_.store(true, std::memory_order_release);
    team->epoch_.fetch_add(1, std::memory_order_seq_cst);
    futex_wake(team->epoch_);
    for (int worker = 0; worker < team->threads_; ++worker) {
        if (whole) pthread_join(team->seats_[worker].thread, nullptr);
        else pthread_detach(team->seats_[worker].thread);
    }
    if (whole) delete team;
    return whole;
}

bool Team::idle() {
    if (broken() || threads_ == 0) return false;
    // Whoever saw *done may be here a moment before the last worker has closed the work.
    const uint32_t epoch = epoch_.load(std::memory_order_relaxed);
    return spin([&] { return finished_.load(std::memory_order_acquire) == epoch; }, kSpinNs);
}

bool Team::start(Body body, void* context, volatile uint32_t* done, uint32_t value) {
    if (!idle()) return false;
    body_ = body;
    context_ = context;
    done_ = done;
    value_ = value;
    arrived_.store(0, std::memory_order_relaxed);
    running_.store(threads_, std::memory_order_relaxed);
    // Sequentially consistent with the sleeper's count and its last look: one of the two sees the other.
    epoch_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) > 0) futex_wake(epoch_);
    return true;
}

void Team::wake() {
    if (sleepers_.load(std::memory_order_relaxed) > 0) futex_wake(epoch_);
}

void Team::keep_awake(bool on) {
    awake_.store(on, std::memory_order_relaxed);
    if (on) wake();
}

bool Team::wait(int64_t timeout_ns) {
    const uint32_t epoch = epoch_.load(std::memory_order_relaxed);
    const auto ready = [&] { return finished_.load(std::memory_order_acquire) == epoch; };
    const int64_t end = now_ns() + timeout_ns;
    if (spin(ready, timeout_ns < spin_ns_ ? timeout_ns : spin_ns_)) return true;
    waiting_.store(true, std::memory_order_seq_cst);
    int64_t left;
    while (!ready() && (left = end - now_ns()) > 0) {
        const uint32_t last = finished_.load(std::memory_order_seq_cst);
        if (last != epoch) futex_wait(finished_, last, left);
    }
    waiting_.store(false, std::memory_order_relaxed);
    if (ready()) return true;
    for (int worker = threads_ - 1; worker >= 0; --worker)
        if (seats_[worker].reached.load(std::memory_order_acquire) != epoch) stuck_ = worker;
    broken_.store(true, std::memory_order_seq_cst);
    return false;
}

bool Team::barrier() {
    const uint32_t gate = gate_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
        arrived_.store(0, std::memory_order_relaxed);
        gate_.store(gate + 1, std::memory_order_release);
        return !abandoned();
    }
    while (!spin([&] { return gate_.load(std::memory_order_acquire) != gate; }, spin_ns_)) {
        if (abandoned()) return false;
        sched_yield();
    }
    return !abandoned();
}

void* Team::enter(void* seat) {
    Seat& own = *static_cast<Seat*>(seat);
    if (own.core >= 0) {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(own.core, &one);
        // Refused (the core is not ours): the thread floats.
        pthread_setaffinity_np(pthread_self(), sizeof one, &one);
    }
    pthread_setname_np(pthread_self(), "ft-expert");
    own.team->work(own);
    return nullptr;
}

void Team::work(Seat& seat) {
    uint32_t epoch = 0;
    while (next(epoch)) {
        ++epoch;
        if (seat.worker == 0) {
            const int64_t stall = stall_ns_.exchange(0);
            if (stall > 0) doze(stall);
        }
        if (!abandoned()) body_(context_, seat.worker);
        if (abandoned()) return;
        finish(seat, epoch);
    }
}

// Until there is work after epoch `seen`. False: the team ends.
bool Team::next(uint32_t seen) {
    const auto ready = [&] { return epoch_.load(std::memory_order_acquire) != seen; };
    while (!spin(ready, spin_ns_)) {
        // A crowded team may not spin on: somebody else needs the core.
        if (awake_.load(std::memory_order_relaxed) && spin_ns_ == kSpinNs) continue;
        sleepers_.fetch_add(1, std::memory_order_seq_cst);
        // The limit is a safety net: a wake that were lost would cost a second, not the process.
        while (epoch_.load(std::memory_order_seq_cst) == seen && !futex_wait(epoch_, seen, 1'000'000'000)) {
        }
        sleepers_.fetch_sub(1, std::memory_order_relaxed);
    }
    return !stop_.load(std::memory_order_acquire);
}

void Team::finish(Seat& seat, uint32_t epoch) {
    // Taken before the count falls: afterwards the owner may start the next work.
    volatile uint32_t* const done = done_;
    const uint32_t value = value_;
    seat.reached.store(epoch, std::memory_order_release);
    if (running_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    if (done && !abandoned()) __atomic_store_n(done, value, __ATOMIC_RELEASE);
    finished_.store(epoch, std::memory_order_seq_cst);
    if (waiting_.load(std::memory_order_seq_cst)) futex_wake(finished_);
}

}  // namespace ft
