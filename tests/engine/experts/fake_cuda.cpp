// A CUDA driver in host memory, for tests: every call is done at once. Declared after cuda.h (12.8, 13.0), apart from
// the declarations in link_cuda.cpp, so that a wrong one there shows. FAKE_CUDA_FAIL=<function>:<code> makes a call
// fail; FAKE_CUDA_WITHOUT names functions to report as not supported.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

extern "C" {

typedef int CUresult;
typedef unsigned long long CUdeviceptr;
typedef struct CUstream_st* CUstream;
typedef struct CUctx_st* CUcontext;
typedef struct {
    int type;
    int id;
} CUmemLocation;
typedef struct {
    int srcAccessOrder;
    CUmemLocation srcLocHint;
    CUmemLocation dstLocHint;
    unsigned int flags;
} CUmemcpyAttributes;
typedef union {
    int operation;
    struct {
        int operation;
        CUdeviceptr address;
        union {
            uint32_t value;
            uint64_t value64;
        };
        unsigned int flags;
        CUdeviceptr alias;
    } writeValue;
    uint64_t pad[6];
} CUstreamBatchMemOpParams;

static CUcontext current;
static const CUcontext primary = (CUcontext)0x1234;
static const CUstream stream_of_tests = (CUstream)0x5678;
static int copies, batches, writes, write_batches, retained;

static CUresult result(const char* name) {
    const char* fail = getenv("FAKE_CUDA_FAIL");
    const size_t size = strlen(name);
    if (fail && !strncmp(fail, name, size) && fail[size] == ':') return atoi(fail + size + 1);
    const char* without = getenv("FAKE_CUDA_WITHOUT");
    return without && strstr(without, name) ? 801 : 0;
}
static CUresult on_stream(const char* name, CUstream stream) {
    if (current != primary) return 201;          // CUDA_ERROR_INVALID_CONTEXT
    if (stream != stream_of_tests) return 400;  // CUDA_ERROR_INVALID_HANDLE
    return result(name);
}

int fake_cuda_count(int which) {
    const int counts[] = {copies, batches, writes, write_batches, retained};
    return counts[which];
}
CUresult cuInit(unsigned flags) { return flags ? 1 : result("cuInit"); }
CUresult cuDeviceGet(int* device, int ordinal) {
    *device = 40 + ordinal;
    return ordinal > 1 ? 101 : 0;  // CUDA_ERROR_INVALID_DEVICE
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, int device) {
    retained++;
    *context = primary;
    return device < 40 ? 101 : 0;
}
CUresult cuDevicePrimaryCtxRelease_v2(int) { return retained--, 0; }
CUresult cuCtxSetCurrent(CUcontext context) { return current = context, 0; }
CUresult cuCtxGetCurrent(CUcontext* context) { return *context = current, 0; }
CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) { return *least = 0, *greatest = -5, 0; }
CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority) {
    *stream = stream_of_tests;
    return flags == 1 && priority == -5 ? result("cuStreamCreateWithPriority") : 1;
}
CUresult cuStreamDestroy_v2(CUstream) { return 0; }
CUresult cuStreamQuery(CUstream stream) { return on_stream("cuStreamQuery", stream); }
CUresult cuStreamSynchronize(CUstream) { return 0; }
CUresult cuMemHostAlloc(void** memory, size_t size, unsigned flags) {
    *memory = calloc(1, size);
    return flags == 3 ? 0 : 1;
}
CUresult cuMemFreeHost(void* memory) { return free(memory), 0; }
CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* address, void* memory, unsigned) {
    return *address = (CUdeviceptr)(uintptr_t)memory, 0;
}
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr target, const void* source, size_t size, CUstream stream) {
    const CUresult code = on_stream("cuMemcpyHtoDAsync", stream);
    if (code) return code;
    copies++;
    return memcpy((void*)(uintptr_t)target, source, size), 0;
}
CUresult cuMemcpyBatchAsync_v2(CUdeviceptr* targets, CUdeviceptr* sources, size_t* sizes, size_t count,
                               CUmemcpyAttributes* attributes, size_t* indices, size_t kinds, CUstream stream) {
    const CUresult code = on_stream("cuMemcpyBatchAsync", stream);
    if (code) return code;
    if (kinds != 1 || indices[0] != 0 || attributes->srcAccessOrder != 1 || attributes->flags) return 1;
    batches++;
    for (size_t i = 0; i < count; i++)
        memcpy((void*)(uintptr_t)targets[i], (void*)(uintptr_t)sources[i], sizes[i]);
    return 0;
}
CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags) {
    const CUresult code = on_stream("cuStreamWriteValue32", stream);
    if (code || flags) return code ? code : 1;
    writes++;
    return *(uint32_t*)(uintptr_t)address = value, 0;
}
CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned count, CUstreamBatchMemOpParams* params, unsigned flags) {
    const CUresult code = on_stream("cuStreamBatchMemOp", stream);
    if (code || flags || count > 256) return code ? code : 1;
    write_batches++;
    for (unsigned i = 0; i < count; i++) {
        if (params[i].operation != 2 || params[i].writeValue.flags) return 1;
        *(uint32_t*)(uintptr_t)params[i].writeValue.address = params[i].writeValue.value;
    }
    return 0;
}
CUresult cuGetErrorName(int code, const char** name) {
    return *name = code == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : code == 101 ? "CUDA_ERROR_INVALID_DEVICE" : 0, 0;
}
CUresult cuGetErrorString(int code, const char** text) {
    return *text = code == 700 ? "an illegal memory access was encountered" : 0, 0;
}
}
