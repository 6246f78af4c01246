// The copy stream through the CUDA driver API. The library is opened at run time and its few structures are declared
// here, so that building needs no CUDA; names and values are those of cuda.h (12.8 and 13.0).
#include <dlfcn.h>
#include <string.h>

#include "link.h"

namespace ft {
namespace {

constexpr int NOT_READY = 600, NOT_SUPPORTED = 801;
constexpr unsigned NON_BLOCKING = 1;              // CU_STREAM_NON_BLOCKING
constexpr unsigned PORTABLE = 1, DEVICE_MAP = 2;  // CU_MEMHOSTALLOC_*
constexpr uint32_t WRITE_VALUE_32 = 2;            // CU_STREAM_MEM_OP_WRITE_VALUE_32
constexpr int MAX_COPIES = 64, MAX_WRITES = 128;  // of one call; the driver takes 256 writes

struct Location {
    int type, id;
};
struct CopyAttributes {
    int order;  // 1: CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
    Location source, target;
    unsigned flags;
};
// CUstreamBatchMemOpParams: a union of 48 bytes; this is its writeValue.
struct MemoryWrite {
    uint32_t operation;
    uint64_t address;
    uint64_t value;
    uint32_t flags;  // 0: with a fence before the write
    uint64_t alias;
    uint64_t pad;
};
static_assert(sizeof(MemoryWrite) == 48, "layout of CUstreamBatchMemOpParams");

using Stream = void*;
using Context = void*;

struct Driver {
    int (*init)(unsigned);
    int (*device_get)(int*, int);
    int (*context_retain)(Context*, int);
    int (*context_release)(int);
    int (*context_set)(Context);
    int (*context_get)(Context*);
    int (*priorities)(int*, int*);
    int (*stream_new)(Stream*, unsigned, int);
    int (*stream_free)(Stream);
    int (*stream_query)(Stream);
    int (*stream_wait)(Stream);
    int (*host_new)(void**, size_t, unsigned);
    int (*host_free)(void*);
    int (*host_address)(uint64_t*, void*, unsigned);
    int (*copy)(uint64_t, const void*, size_t, Stream);
    int (*write)(Stream, uint64_t, uint32_t, unsigned);
    int (*error_name)(int, const char**);
    int (*error_text)(int, const char**);
    // Not in every driver:
    int (*writes)(Stream, unsigned, MemoryWrite*, unsigned);
    int (*batch13)(uint64_t*, uint64_t*, size_t*, size_t, CopyAttributes*, size_t*, size_t, Stream);
    int (*batch12)(uint64_t*, uint64_t*, size_t*, size_t, CopyAttributes*, size_t*, size_t, size_t*, Stream);

    template <class Function>
    bool find(void* library, Function* function, const char* name, std::string* error) {
        *function = reinterpret_cast<Function>(dlsym(library, name));
        if (!*function && error) *error = std::string(name) + " is not in the CUDA driver; a newer one is needed";
        return *function != nullptr;
    }

    bool open(const char* name, std::string* error) {
        void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
        if (!library) {
            const char* const reason = dlerror();
            *error = std::string("the CUDA driver cannot be opened: ") + (reason ? reason : name);
            return false;
        }
        find(library, &writes, "cuStreamBatchMemOp_v2", nullptr);
        find(library, &batch13, "cuMemcpyBatchAsync_v2", nullptr);
        find(library, &batch12, "cuMemcpyBatchAsync", nullptr);
        return find(library, &init, "cuInit", error) && find(library, &device_get, "cuDeviceGet", error) &&
               find(library, &context_retain, "cuDevicePrimaryCtxRetain", error) &&
               find(library, &context_release, "cuDevicePrimaryCtxRelease_v2", error) &&
               find(library, &context_set, "cuCtxSetCurrent", error) &&
               find(library, &context_get, "cuCtxGetCurrent", error) &&
               find(library, &priorities, "cuCtxGetStreamPriorityRange", error) &&
               find(library, &stream_new, "cuStreamCreateWithPriority", error) &&
               find(library, &stream_free, "cuStreamDestroy_v2", error) &&
               find(library, &stream_query, "cuStreamQuery", error) &&
               find(library, &stream_wait, "cuStreamSynchronize", error) &&
               find(library, &host_new, "cuMemHostAlloc", error) &&
               find(library, &host_free, "cuMemFreeHost", error) &&
               find(library, &host_address, "cuMemHostGetDevicePointer_v2", error) &&
               find(library, &copy, "cuMemcpyHtoDAsync_v2", error) &&
               find(library, &write, "cuStreamWriteValue32_v2", error) &&
               find(library, &error_name, "cuGetErrorName", error) &&
               find(library, &error_text, "cuGetErrorString", error);
    }
};

class CudaLink : public Link {
  public:
    ~CudaLink() override {
        if (!context_) return;
        Context before = nullptr;
        driver_.context_get(&before);
        driver_.context_set(context_);
        if (stream_) {
            driver_.stream_wait(stream_);
            driver_.stream_free(stream_);
        }
        if (mark_) driver_.host_free(mark_);
        driver_.context_set(before);
        driver_.context_release(device_);
    }

    bool start(int device, const char* driver) {
        if (!driver_.open(driver, &error_)) return false;
        if (!check(driver_.init(0), "cuInit") || !check(driver_.device_get(&device_, device), "cuDeviceGet") ||
            !check(driver_.context_retain(&context_, device_), "cuDevicePrimaryCtxRetain"))
            return false;
        Context before = nullptr;
        driver_.context_get(&before);
        const bool made = attach() && allocate();
        driver_.context_set(before);
        return made;
    }

    bool attach() override { return check(driver_.context_set(context_), "cuCtxSetCurrent"); }
    uint32_t completed() const override { return __atomic_load_n(mark_, __ATOMIC_ACQUIRE); }

    bool sound() override {
        if (!error_.empty()) return false;
        const int code = driver_.stream_query(stream_);
        return code == NOT_READY || check(code, "cuStreamQuery");
    }

  protected:
    bool enqueue(const Copy* copies, int copy_count, const Write* writes, int write_count, uint32_t mark) override {
        for (int first = 0; first < copy_count; first += MAX_COPIES)
            if (!copy(copies + first, copy_count - first < MAX_COPIES ? copy_count - first : MAX_COPIES)) return false;
        for (; write_count > MAX_WRITES; writes += MAX_WRITES, write_count -= MAX_WRITES)
            if (!write(writes, MAX_WRITES, nullptr)) return false;
        const Write last{mark_device_, mark};
        return write(writes, write_count, &last);
    }

  private:
    bool allocate() {
        int least = 0, greatest = 0;
        void* memory = nullptr;
        if (!check(driver_.priorities(&least, &greatest), "cuCtxGetStreamPriorityRange") ||
            !check(driver_.stream_new(&stream_, NON_BLOCKING, greatest), "cuStreamCreateWithPriority") ||
            !check(driver_.host_new(&memory, 64, PORTABLE | DEVICE_MAP), "cuMemHostAlloc"))
            return false;
        mark_ = static_cast<uint32_t*>(memory);
        *mark_ = 0;
        return check(driver_.host_address(&mark_device_, mark_, 0), "cuMemHostGetDevicePointer");
    }

    bool copy(const Copy* copies, int count) {
        if (count > 1 && (driver_.batch13 || driver_.batch12)) {
            const int code = copy_batch(copies, count);
            if (code != NOT_SUPPORTED) return check(code, "cuMemcpyBatchAsync");
            driver_.batch13 = nullptr;
            driver_.batch12 = nullptr;
        }
        for (int i = 0; i < count; i++)
            if (!check(driver_.copy(copies[i].target, copies[i].source, size_t(copies[i].bytes), stream_),
                       "cuMemcpyHtoDAsync"))
                return false;
        return true;
    }

    int copy_batch(const Copy* copies, int count) {
        uint64_t targets[MAX_COPIES], sources[MAX_COPIES];
        size_t sizes[MAX_COPIES], of_first = 0, failed = 0;
        for (int i = 0; i < count; i++) {
            targets[i] = copies[i].target;
            sources[i] = reinterpret_cast<uint64_t>(copies[i].source);
            sizes[i] = size_t(copies[i].bytes);
        }
        CopyAttributes attributes{};
        attributes.order = 1;
        if (driver_.batch13)
            return driver_.batch13(targets, sources, sizes, size_t(count), &attributes, &of_first, 1, stream_);
        return driver_.batch12(targets, sources, sizes, size_t(count), &attributes, &of_first, 1, &failed, stream_);
    }

    bool write(const Write* writes, int count, const Write* last) {
        const int total = count + (last ? 1 : 0);
        if (driver_.writes) {
            MemoryWrite batch[MAX_WRITES + 1];
            for (int i = 0; i < total; i++) {
                const Write& write = i < count ? writes[i] : *last;
                batch[i] = {WRITE_VALUE_32, write.address, write.value, 0, 0, 0};
            }
            const int code = driver_.writes(stream_, unsigned(total), batch, 0);
            if (code != NOT_SUPPORTED) return check(code, "cuStreamBatchMemOp");
            driver_.writes = nullptr;
        }
        for (int i = 0; i < total; i++) {
            const Write& write = i < count ? writes[i] : *last;
            if (!check(driver_.write(stream_, write.address, write.value, 0), "cuStreamWriteValue32")) return false;
        }
        return true;
    }

    bool check(int code, const char* call) {
        if (code == 0) return true;
        const char *name = nullptr, *text = nullptr;
        driver_.error_name(code, &name);
        driver_.error_text(code, &text);
        if (!error_.empty()) return false;
        error_ = std::string(call) + ": " + (name ? name : "unknown error");
        if (text) error_ += std::string(" (") + text + ")";
        return false;
    }

    Driver driver_{};
    int device_ = 0;
    Context context_ = nullptr;
    Stream stream_ = nullptr;
    uint32_t* mark_ = nullptr;  // number of the last completed submission, in mapped host memory
    uint64_t mark_device_ = 0;
};

}  // namespace

Link* new_cuda_link(int device, const char* driver, std::string* error) {
    CudaLink* const made = new CudaLink;
    if (made->start(device, driver)) return made;
    *error = made->error();
    delete made;
    return nullptr;
}

}  // namespace ft
