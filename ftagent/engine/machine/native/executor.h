// Computes experts where they lie in host memory, on persistent pinned threads.
//
// An expert is `records` [intermediate, 3, hidden] (gate row | up row | down column of one intermediate channel), so
// any run of records is one contiguous range of bytes and a complete partial expert. Biases of gate and up
// [2 * intermediate] lie behind the records, in the same dtype; that of down is left to who adds the parts. A job is cut evenly by records:
// worker t takes one contiguous range of all records of the job, in the order of its parts, without barriers between
// gate/up and down. Where workers share an expert, their float32 sums are added in the order of the record ranges,
// whichever worker was fast.
// Determinism: the same parts on the same number of threads with the same instruction set give the same bits.
#pragma once

#include <stdint.h>

#include "kernels.h"

namespace ft {

struct Shape {
    int32_t hidden, intermediate;
    int32_t dtype;      // 0 bf16, 1 float32
    int64_t row_bytes;  // from one expert to the next; not needed to compute a part
    int32_t biased;     // whether there are biases
    Swiglu swiglu;
};

struct Part {
    const void* records;  // first byte of the expert's row
    int32_t first, last;  // records [first, last) of it; first == last gives zeros
    int32_t row;          // row of x
    float* y;             // float32 [hidden], written (not added to)
};

class Team;
struct Job;

class Executor {
  public:
    // `cores`: one per worker, or null: the first `threads` of the process's affinity mask. `isa`: highest instruction
    // set to use (kernels.h, enum Isa), -1 for the best that the processor has.
    Executor(Shape shape, int threads, const int* cores = nullptr, int isa = -1);
    // Joins the workers. After a time-out it lets go of them instead, and of what they may still touch.
    ~Executor();
    Executor(const Executor&) = delete;
    Executor& operator=(const Executor&) = delete;

    // x: [rows, hidden] of the shape's dtype; x, the records and every y must stay valid until the job is done.
    // Returns at once. When all parts are done the last worker stores `value` to *done (release; null: nowhere).
    // Parts of one expert and the same records for several rows, given next to each other, share one pass over the
    // weights for up to 4 rows (bf16; 2 for float32). False: nothing was started, because a worker hangs or a job is
    // still running.
    bool start(const Part* parts, int count, const void* x, volatile uint32_t* done, uint32_t value);
    // True when the job is done. False on time-out: the executor is broken from then on, and `done` is not written.
    bool wait(int64_t timeout_ns);

    // A job is near: workers that sleep get up and spin for 2 ms.
    void wake();
    // Between the parts of a step: workers without work spin and never sleep.
    void keep_awake(bool on);
    // Seconds of one pass of all workers over `bytes` at `data` (64-byte aligned), only reading: what the kernels are
    // measured against. Negative: broken, busy or timed out.
    double read(const void* data, int64_t bytes, int64_t timeout_ns);

    bool usable() const;  // there is a kernel for the dtype, memory for the sums, and at least one thread
    bool broken() const;
    int stuck_worker() const;  // the first worker that had not finished at the time-out, -1 if not broken
    int threads() const;
    const char* isa() const;  // name of the kernel's instruction set
    Shape shape() const { return shape_; }
    void stall_for_test(int64_t ns);  // next job: worker 0 sleeps first

  private:
    Shape shape_;
    Team* team_;
    Job* job_;
};

}  // namespace ft
