#include "executor.h"

#include <stdlib.h>
#include <string.h>

#include <vector>

#include "bandwidth.h"
#include "kernels.h"
#include "team.h"

namespace ft {
namespace {

constexpr int kSlice = 16;  // float32 of a cache line: the unit in which sums are shared out
// Sums of a worker: of the expert that its range begins inside, of the one that it ends inside, of a whole one.
enum Slot { kHead = 0, kTail = 1, kWhole = 2, kSlots = 3 };

// The parts of one expert over the same records, up to four rows: one pass over the weights.
struct Group {
    const uint8_t* expert;
    int32_t first, last;
    int32_t rows;
    int32_t row[kMaxRows];
    float* y[kMaxRows];
    int64_t begin, end;  // place among all records of the job
    int32_t first_worker, last_worker;
};

}  // namespace

struct Job {
    const RecordKernel* kernel;
    int32_t hidden, intermediate;
    int64_t padded;  // hidden, rounded up to kPad
    int64_t stride;  // from one row of sums or of x to the next
    int64_t record_bytes;
    int64_t biases_at;  // bytes from an expert's first to its biases; 0: it has none
    Swiglu swiglu;
    int32_t workers;
    Team* team;
    float* scratch;  // [workers, kSlots + 1, kMaxRows, stride]: sums, then x
    std::vector<Group> groups;
    int64_t total;
    bool shared;  // some group is cut between workers
    const uint8_t* x;
    const uint8_t* read_from;
    int64_t read_bytes;

    int64_t cut(int64_t worker) const { return total * worker / workers; }
    int32_t owner(int64_t record) const;
    float* sums(int worker, int slot, int row) const {
        return scratch + ((int64_t(worker) * (kSlots + 1) + slot) * kMaxRows + row) * stride;
    }
    bool plan(const Part* parts, int count);
    void take_x(int worker, const Group& group, int32_t* loaded, Work& work) const;
    bool compute(int worker) const;
    void reduce(int worker) const;
};

namespace {

// Four rows that start at the same place of a 4 KiB page fall on the same cache sets, and a load from one waits for
// an earlier store to another. So each starts a good quarter of a page after the one before.
int64_t staggered(int64_t padded) {
    constexpr int64_t kPage = 4096 / sizeof(float), kStep = 1088 / sizeof(float);
    return padded + (kStep - padded % kPage + kPage) % kPage;
}

bool joins(const Group& group, const Part& part) {
    return group.rows < kMaxRows && group.expert == part.records && group.first == part.first &&
           group.last == part.last;
}

void run_job(void* context, int worker) {
    const Job& job = *static_cast<const Job*>(context);
    if (!job.compute(worker) || !job.shared) return;
    if (job.team->barrier()) job.reduce(worker);
}

void run_read(void* context, int worker) {
    const Job& job = *static_cast<const Job*>(context);
    const int64_t lines = job.read_bytes / 64;
    const int64_t begin = lines * worker / job.workers, end = lines * (worker + 1) / job.workers;
    read_lines(job.read_from + 64 * begin, end - begin);
}

}  // namespace

// The worker whose range holds this record: the last one whose range begins at or before it.
int32_t Job::owner(int64_t record) const {
    int64_t worker = record * workers / total;
    while (worker + 1 < workers && cut(worker + 1) <= record) ++worker;
    while (cut(worker) > record) --worker;
    return int32_t(worker);
}

// Groups and ranges of the job. False: there is nothing to compute (all y are written).
bool Job::plan(const Part* parts, int count) {
    groups.clear();
    total = 0;
    for (const Part* part = parts; part != parts + count; ++part) {
        if (part->first >= part->last) {
            memset(part->y, 0, hidden * sizeof(float));
            continue;
        }
        if (groups.empty() || !joins(groups.back(), *part)) {
            Group group{};
            group.expert = static_cast<const uint8_t*>(part->records);
            group.first = part->first;
            group.last = part->last;
            group.begin = total;
            group.end = total += part->last - part->first;
            groups.push_back(group);
        }
        Group& group = groups.back();
        group.row[group.rows] = part->row;
        group.y[group.rows++] = part->y;
    }
    shared = false;
    for (Group& group : groups) {
        group.first_worker = owner(group.begin);
        group.last_worker = owner(group.end - 1);
        shared |= group.first_worker != group.last_worker;
    }
    return total > 0;
}

// The group's rows of x in the form that the kernel wants, in this worker's own cache.
void Job::take_x(int worker, const Group& group, int32_t* loaded, Work& work) const {
    using Bits = uint32_t __attribute__((may_alias));
    const int64_t item = kernel->dtype == kFloat32 ? 4 : 2;
    for (int r = 0; r < group.rows; ++r) {
        float* const to = sums(worker, kSlots, r);
        work.x[r] = to;
        if (loaded[r] == group.row[r]) continue;
        loaded[r] = group.row[r];
        const uint8_t* const from = x + group.row[r] * item * hidden;
        if (item == 4 || !kernel->float_x) {
            memcpy(to, from, item * hidden);
        } else {
            const uint16_t* const narrow = reinterpret_cast<const uint16_t*>(from);
            Bits* const wide = reinterpret_cast<Bits*>(to);
            for (int h = 0; h < hidden; ++h) wide[h] = uint32_t(narrow[h]) << 16;
        }
    }
}

// This worker's range of records. False: the owner has given up.
bool Job::compute(int worker) const {
    const int64_t begin = cut(worker), end = cut(worker + 1);
    int32_t loaded[kMaxRows] = {-1, -1, -1, -1};
    size_t at = 0;
    while (at < groups.size() && groups[at].end <= begin) ++at;
    for (; at < groups.size() && groups[at].begin < end; ++at) {
        const Group& group = groups[at];
        const int64_t from = group.begin > begin ? group.begin : begin;
        const int64_t to = group.end < end ? group.end : end;
        const bool whole = from == group.begin && to == group.end;
        const int slot = whole ? kWhole : group.begin < begin ? kHead : kTail;
        Work work{};
        work.expert = group.expert;
        work.first = group.first + int32_t(from - group.begin);
        work.last = group.first + int32_t(to - group.begin);
        work.hidden = hidden;
        work.intermediate = intermediate;
        work.biases = biases_at ? group.expert + biases_at : nullptr;
        work.swiglu = swiglu;
        work.rows = group.rows;
        if (at + 1 < groups.size() && groups[at + 1].begin < end)
            work.next = groups[at + 1].expert + groups[at + 1].first * record_bytes;
        take_x(worker, group, loaded, work);
        for (int r = 0; r < group.rows; ++r)
            memset(work.y[r] = sums(worker, slot, r), 0, padded * sizeof(float));
        if (team->abandoned()) return false;
        kernel->run(work);
        if (!whole) continue;
        if (team->abandoned()) return false;
        for (int r = 0; r < group.rows; ++r) memcpy(group.y[r], work.y[r], hidden * sizeof(float));
    }
    return true;
}

// This worker's columns of every sum that was cut between workers, added in the order of the records.
void Job::reduce(int worker) const {
    const int64_t slices = padded / kSlice;
    const int64_t begin = slices * worker / workers * kSlice;
    const int64_t cut_end = slices * (worker + 1) / workers * kSlice;
    const int64_t end = cut_end < hidden ? cut_end : hidden;
    for (const Group& group : groups) {
        if (group.first_worker == group.last_worker) continue;
        for (int r = 0; r < group.rows; ++r) {
            for (int64_t h = begin; h < end; h += kSlice) {
                float sum[kSlice] = {};
                for (int32_t from = group.first_worker; from <= group.last_worker; ++from) {
                    if (cut(from) == cut(from + 1)) continue;
                    const float* const part = sums(from, group.begin < cut(from) ? kHead : kTail, r) + h;
                    for (int i = 0; i < kSlice; ++i) sum[i] += part[i];
                }
                const int64_t left = end - h < kSlice ? end - h : kSlice;
                memcpy(group.y[r] + h, sum, left * sizeof(float));
            }
        }
    }
}

Executor::Executor(Shape shape, int threads, const int* cores, int isa)
    : shape_(shape), team_(new Team(threads, cores)), job_(new Job{}) {
    job_->kernel = choose_kernel(shape.dtype, isa);
    job_->hidden = shape.hidden;
    job_->intermediate = shape.intermediate;
    job_->padded = (shape.hidden + kPad - 1) / kPad * kPad;
    job_->record_bytes = job_->kernel ? job_->kernel->record_bytes(shape.hidden) : 0;
    job_->biases_at = shape.biased ? job_->record_bytes * shape.intermediate : 0;
    job_->swiglu = shape.swiglu;
    job_->workers = team_->threads();
    job_->team = team_;
    job_->stride = staggered(job_->padded);
    const size_t bytes = size_t(job_->workers) * (kSlots + 1) * kMaxRows * job_->stride * sizeof(float);
    job_->scratch = static_cast<float*>(aligned_alloc(64, bytes ? bytes : 64));
    if (job_->scratch) memset(job_->scratch, 0, bytes);
}

Executor::~Executor() {
    // Workers that hang may still read the job and write their sums: both stay.
    if (!Team::release(team_)) return;
    free(job_->scratch);
    delete job_;
}

bool Executor::start(const Part* parts, int count, const void* x, volatile uint32_t* done, uint32_t value) {
    if (!usable() || !team_->idle()) return false;
    job_->x = static_cast<const uint8_t*>(x);
    if (job_->plan(parts, count)) return team_->start(run_job, job_, done, value);
    if (done) __atomic_store_n(done, value, __ATOMIC_RELEASE);
    return true;
}

double Executor::read(const void* data, int64_t bytes, int64_t timeout_ns) {
    if (!usable() || !team_->idle()) return -1;
    job_->read_from = static_cast<const uint8_t*>(data);
    job_->read_bytes = bytes;
    const int64_t begin = now_ns();
    if (!team_->start(run_read, job_, nullptr, 0) || !team_->wait(timeout_ns)) return -1;
    return double(now_ns() - begin) * 1e-9;
}

bool Executor::wait(int64_t timeout_ns) { return team_->wait(timeout_ns); }
void Executor::wake() { team_->wake(); }

void Executor::keep_awake(bool on) { team_->keep_awake(on); }
bool Executor::usable() const { return job_->kernel && job_->scratch && team_->threads() > 0; }
bool Executor::broken() const { return team_->broken(); }
int Executor::stuck_worker() const { return team_->stuck_worker(); }
int Executor::threads() const { return team_->threads(); }
const char* Executor::isa() const { return job_->kernel ? job_->kernel->name : ""; }
void Executor::stall_for_test(int64_t ns) { team_->stall_for_test(ns); }

}  // namespace ft
