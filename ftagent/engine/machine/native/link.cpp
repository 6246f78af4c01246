#include "link.h"

#include <stdio.h>
#include <string.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

namespace ft {

bool Link::submit(const Copy* copies, int copy_count, const Write* writes, int write_count) {
    if (!error_.empty()) return false;
    if (!enqueue(copies, copy_count, writes, write_count, submitted_ + 1)) return false;
    submitted_++;
    return true;
}

namespace {

using Clock = std::chrono::steady_clock;

class LoopbackLink : public Link {
  public:
    explicit LoopbackLink(const LoopbackOptions& options)
        : options_(options), random_(options.seed), thread_([this] { run(); }) {}

    ~LoopbackLink() override {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            stop_ = true;
        }
        wake_.notify_all();
        thread_.join();
    }

    uint32_t completed() const override { return __atomic_load_n(&completed_, __ATOMIC_ACQUIRE); }

  protected:
    bool enqueue(const Copy* copies, int copy_count, const Write* writes, int write_count, uint32_t mark) override {
        if (options_.fail_at && mark >= options_.fail_at) {
            error_ = "loopback copy: refused for a test";
            return false;
        }
        {
            std::lock_guard<std::mutex> lock(mutex_);
            jobs_.push_back({{copies, copies + copy_count}, {writes, writes + write_count}, mark});
        }
        wake_.notify_one();
        return true;
    }

  private:
    struct Job {
        std::vector<Copy> copies;
        std::vector<Write> writes;
        uint32_t mark;
    };

    void run() {
        std::unique_lock<std::mutex> lock(mutex_);
        for (;;) {
            wake_.wait(lock, [this] { return stop_ || !jobs_.empty(); });
            if (stop_) return;
            const Job job = std::move(jobs_.front());
            jobs_.pop_front();
            lock.unlock();
            perform(job);
            lock.lock();
        }
    }

    void perform(const Job& job) {
        Clock::time_point end = Clock::now();
        int64_t bytes = 0;
        for (const Copy& copy : job.copies) bytes += copy.bytes;
        if (options_.bytes_per_s > 0)
            end += std::chrono::nanoseconds(int64_t(1e9 * double(bytes) / options_.bytes_per_s));
        if (options_.max_delay_ns) end += std::chrono::nanoseconds(random_() % uint64_t(options_.max_delay_ns));
        // Half before and half after the wait, so that whoever reads too early meets a torn expert.
        for (const Copy& copy : job.copies) move(copy, 0, copy.bytes / 2);
        while (Clock::now() < end || (options_.stall_at && job.mark >= options_.stall_at)) {
            std::unique_lock<std::mutex> lock(mutex_);
            if (wake_.wait_for(lock, std::chrono::microseconds(20), [this] { return stop_; })) return;
        }
        for (const Copy& copy : job.copies) move(copy, copy.bytes / 2, copy.bytes);
        for (const Write& write : job.writes)
            __atomic_store_n(reinterpret_cast<uint32_t*>(write.address), write.value, __ATOMIC_RELEASE);
        __atomic_store_n(&completed_, job.mark, __ATOMIC_RELEASE);
    }

    static void move(const Copy& copy, int64_t first, int64_t last) {
        memcpy(reinterpret_cast<char*>(copy.target) + first, static_cast<const char*>(copy.source) + first,
               size_t(last - first));
    }

    const LoopbackOptions options_;
    std::mt19937 random_;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::deque<Job> jobs_;
    bool stop_ = false;
    uint32_t completed_ = 0;
    std::thread thread_;  // last: starts when all else is there
};

}  // namespace

Link* new_loopback_link(const LoopbackOptions& options) { return new LoopbackLink(options); }

}  // namespace ft

#define FT_API extern "C" __attribute__((visibility("default")))

namespace {
ft::Link* link(void* handle) { return static_cast<ft::Link*>(handle); }
}  // namespace

FT_API void* ft_link_loopback_new(const ft::LoopbackOptions* options) { return ft::new_loopback_link(*options); }
FT_API void* ft_link_cuda_new(int device, const char* driver, char* message, int size) {
    std::string error;
    ft::Link* const made = ft::new_cuda_link(device, driver, &error);
    if (!made) snprintf(message, size_t(size), "%s", error.c_str());
    return made;
}
FT_API void ft_link_free(void* handle) { delete link(handle); }
// The submission's number for ft_link_reached, or 0 on an error (ft_link_error). Attaches the calling thread.
FT_API uint32_t ft_link_submit(void* handle, const ft::Copy* copies, int copy_count, const ft::Write* writes,
                               int write_count) {
    if (!link(handle)->attach() || !link(handle)->submit(copies, copy_count, writes, write_count)) return 0;
    return link(handle)->submitted();
}
FT_API int ft_link_reached(void* handle, uint32_t submission) { return link(handle)->reached(submission); }
FT_API int ft_link_sound(void* handle) { return link(handle)->sound(); }
FT_API const char* ft_link_error(void* handle) { return link(handle)->error().c_str(); }
