// Persistent pinned threads that run one function at a time, all of them together.
//
// After work a worker spins for about 2 ms, then sleeps until the next start. A worker that hangs does not take the
// owner along: wait() runs out, the team is broken from then on, and release() lets go of the threads.
#pragma once

#include <pthread.h>
#include <stdint.h>

#include <atomic>

namespace ft {

int64_t now_ns();  // monotonic
inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

class Team {
  public:
    using Body = void (*)(void* context, int worker);

    // `cores`: one per worker, or null: the first `threads` of the process's affinity mask.
    // A process that may not have so many threads gets fewer, see threads(); none: start() is always false.
    Team(int threads, const int* cores);
    // Stops and joins the workers and frees the team; when broken it detaches them and frees nothing that they may
    // still touch. True when everything is gone, so that a context that they were given may go too.
    static bool release(Team* team);
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    // Ready for start(). Waits a moment for work that is about to end. False: broken, at work, or without threads.
    bool idle();
    // body(context, worker) on every worker; the last one to end stores `value` to *done (release; may be null).
    // False: nothing was started, because the team was not idle.
    bool start(Body body, void* context, volatile uint32_t* done, uint32_t value);
    // Work is near: workers that sleep get up and spin, so that start() need not wake them.
    void wake();
    // While set, workers without work spin and never sleep.
    void keep_awake(bool on);
    // True when the work is done. False on time-out: the team is broken from then on.
    bool wait(int64_t timeout_ns);
    // Inside a body: until every worker has come here. False when the owner has given up: end at once.
    bool barrier();
    // Inside a body: the owner has given up, memory of the job may be gone.
    bool abandoned() const { return broken_.load(std::memory_order_acquire); }

    bool broken() const { return abandoned(); }
    int stuck_worker() const { return stuck_; }
    int threads() const { return threads_; }
    void stall_for_test(int64_t ns) { stall_ns_.store(ns); }

  private:
    ~Team() { delete[] seats_; }
    struct alignas(64) Seat {
        pthread_t thread;
        Team* team;
        int worker;
        int core;
        std::atomic<uint32_t> reached;  // last epoch that this worker has finished
    };
    static void* enter(void* seat);
    void work(Seat& seat);
    bool next(uint32_t seen);
    void finish(Seat& seat, uint32_t epoch);

    int threads_;
    int64_t spin_ns_;
    std::atomic<bool> awake_{false};
    Seat* seats_;
    int stuck_ = -1;
    Body body_ = nullptr;
    void* context_ = nullptr;
    volatile uint32_t* done_ = nullptr;
    uint32_t value_ = 0;
    alignas(64) std::atomic<uint32_t> epoch_{0};  // the work to do; workers spin and sleep on it
    std::atomic<bool> stop_{false};
    alignas(64) std::atomic<int> running_{0};
    alignas(64) std::atomic<uint32_t> finished_{0};  // last epoch that all workers have finished
    std::atomic<bool> waiting_{false};
    alignas(64) std::atomic<int> sleepers_{0};
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<uint32_t> gate_{0};
    alignas(64) std::atomic<bool> broken_{false};
    std::atomic<int64_t> stall_ns_{0};
};

}  // namespace ft
