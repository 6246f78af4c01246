// The copy stream from host memory into device slots, with word writes behind the copies.
//
// Work is done in the order of submission: the copies of a submission (among themselves in any order), then its
// writes in order, each visible after all that came before it. `cuda` uses the driver's copy engine; `loopback` does
// the same with memcpy on a thread, for machines and tests without a GPU. One thread at a time submits; any may ask
// for `completed`.
#pragma once

#include <stdint.h>

#include <string>

namespace ft {

struct Copy {
    uint64_t target;     // device address
    const void* source;  // host memory, registered with the driver, within one registration
    int64_t bytes;
};

struct Write {
    uint64_t address;  // device address of 4 bytes
    uint32_t value;
};

class Link {
  public:
    virtual ~Link() = default;
    // To be called once on the thread that submits.
    virtual bool attach() { return true; }
    // False: nothing can be relied on any more, and `error` says why.
    bool submit(const Copy* copies, int copy_count, const Write* writes, int write_count);
    uint32_t submitted() const { return submitted_; }
    virtual uint32_t completed() const = 0;
    bool reached(uint32_t submission) const { return int32_t(completed() - submission) >= 0; }
    bool idle() const { return completed() == submitted_; }
    // Looks for an error that the device met after submission.
    virtual bool sound() { return error_.empty(); }
    const std::string& error() const { return error_; }

  protected:
    virtual bool enqueue(const Copy* copies, int copy_count, const Write* writes, int write_count, uint32_t mark) = 0;
    std::string error_;

  private:
    uint32_t submitted_ = 0;
};

struct LoopbackOptions {
    double bytes_per_s;    // 0: as fast as memcpy
    int64_t max_delay_ns;  // a random delay up to this before each submission's end
    uint32_t seed;
    int64_t fail_at;   // this submission (from 1) is refused; 0: none
    int64_t stall_at;  // this one never ends; 0: none
};

Link* new_loopback_link(const LoopbackOptions& options);
// `driver`: name of the library, "libcuda.so.1". Null with one sentence in *error when it cannot be set up.
Link* new_cuda_link(int device, const char* driver, std::string* error);

}  // namespace ft

// What Python gets from ft_link_cuda_new and ft_link_loopback_new: the address of an ft::Link.
