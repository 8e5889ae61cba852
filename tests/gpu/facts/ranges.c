/* SPDX-License-Identifier: Apache-2.0 */
/* cuMemGetAddressRange, by which pointers are checked: what it knows, and what it costs. */
#include "facts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static CUresult range_of(void *arg, unsigned i)
{
    CUdeviceptr base;
    size_t n;
    (void)i;
    return driver.cuMemGetAddressRange_v2(&base, &n, *(CUdeviceptr *)arg);
}

/* Of @p in an allocation of @n bytes at @start. Return: true if those are its bounds. */
static bool tell_range(const char *what, CUdeviceptr p, CUdeviceptr start, size_t n)
{
    CUdeviceptr base = 0;
    size_t size = 0;
    CUresult r = CU(cuMemGetAddressRange_v2, &base, &size, p);

    result(what, r);
    if (r == CUDA_SUCCESS)
        says(what, "begins %lld bytes before it, %zu bytes for %zu", (long long)(p - base), size,
             n);
    return r == CUDA_SUCCESS && base == start && size >= n;
}

static void tell_cost(const char *what, CUdeviceptr p)
{
    double ns;
    TRY(time_calls(&ns, rounds(200), 50, range_of, &p));
    figure(what, ns, "ns");
}

void ask_address_range(void)
{
    CUdeviceptr a, b, p, many;
    void *host;
    CUstream stream;
    double ns;

    TRY(new_stream(&stream));
    TRY(CU(cuMemAlloc_v2, &a, 100000));
    holds("of cuMemAlloc's memory it gives the bounds",
          tell_range("inside of cuMemAlloc's", a + 5000, a, 100000));
    tell_cost("inside of cuMemAlloc's, a call", a + 5000);
    TRY(CU(cuMemAllocAsync, &b, 100000, stream));
    TRY(CU(cuStreamSynchronize, stream));
    holds("of cuMemAllocAsync's memory it gives the bounds",
          tell_range("inside of cuMemAllocAsync's", b + 5000, b, 100000));
    tell_cost("inside of cuMemAllocAsync's, a call", b + 5000);
    TRY(CU(cuMemFreeAsync, b, stream));
    tell_range("once it is freed, with the stream idle or not", b + 5000, b, 100000);
    TRY(CU(cuStreamSynchronize, stream));
    tell_range("once the release is done", b + 5000, b, 100000);
    TRY(CU(cuMemFree_v2, a));
    result("once cuMemFree is done", range_of(&a, 0));
    TRY(CU(cuMemHostAlloc, &host, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
    TRY(CU(cuMemHostGetDevicePointer_v2, &p, host, 0));
    tell_range("pinned host memory", p + 64, p, 4096);
    p = 64;
    result("an address that is none", range_of(&p, 0));
    for (unsigned i = 0; i < 2000; i++)
        TRY(CU(cuMemAlloc_v2, &many, 4096));
    TRY(time_calls(&ns, rounds(200), 50, range_of, &many));
    figure("among 2000 allocations, a call", ns, "ns");
}

/* As PyTorch's expandable segments do: one reservation, mapped piece by piece. */
void ask_address_range_mapped(void)
{
    CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE,
                                               .id = driver.device } };
    CUmemAccessDesc access = { .location = prop.location,
                               .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
    CUmemGenericAllocationHandle piece[2];
    CUdeviceptr p;
    size_t n = 0;

    TRY(CU(cuMemGetAllocationGranularity, &n, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    figure("granularity", (double)n / 1024, "KiB");
    TRY(CU(cuMemAddressReserve, &p, 8 * n, 0, 0, 0));
    for (int i = 0; i < 2; i++) {
        TRY(CU(cuMemCreate, &piece[i], n, &prop, 0));
        TRY(CU(cuMemMap, p + i * n, n, 0, piece[i], 0));
    }
    TRY(CU(cuMemSetAccess, p, 2 * n, &access, 1));
    holds("of a mapped piece it gives a range that holds the piece",
          tell_range("in the first piece", p + 64, p, n));
    tell_range("in the second piece", p + n + 64, p + n, n);
    tell_range("in the reservation, not mapped", p + 2 * n + 64, p, n);
    tell_cost("in a mapped piece, a call", p + 64);
}

/* ------------------------------------------------------------------ host memory */

/* An address that kernels may be given where the device reads pageable memory (HMM, ATS), or after a registration. */
void ask_address_range_host(void)
{
    size_t n = 1u << 20;
    char *memory = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CUdeviceptr host = (CUdeviceptr)(uintptr_t)memory, device = 0;
    int pageable = 0;

    if (memory == MAP_FAILED)
        return;
    memset(memory, 0, n);
    result("whether the device reads pageable memory",
           CU(cuDeviceGetAttribute, &pageable, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS,
              driver.device));
    says("the device reads pageable memory", pageable ? "yes" : "no");
    tell_range("system memory", host + 5000, host, n);
    TRY(CU(cuMemHostRegister_v2, memory, n, CU_MEMHOSTREGISTER_DEVICEMAP));
    TRY(CU(cuMemHostGetDevicePointer_v2, &device, memory, 0));
    tell_range("inside of registered memory, by its device address", device + 5000, device, n);
    tell_range("inside of registered memory, by its host address", host + 5000, host, n);
    tell_range("past the end of registered memory", device + n, device, n);
    tell_cost("registered memory, a call", device + 5000);
    TRY(CU(cuMemHostUnregister, memory));
    tell_range("once it is not registered any more", device + 5000, device, n);
    munmap(memory, n);
    /* a part of a page, as programs register what malloc() gave them */
    char *heap = malloc(20000);
    if (!heap)
        return;
    CUresult r = CU(cuMemHostRegister_v2, heap + 100, 10000, CU_MEMHOSTREGISTER_DEVICEMAP);
    result("registering a part of a page", r);
    if (r != CUDA_SUCCESS)
        return;
    TRY(CU(cuMemHostGetDevicePointer_v2, &device, heap + 100, 0));
    tell_range("inside of such a part", device + 5000, device, 10000);
}

/* ------------------------------------------------------------------ another process's memory */

void continue_ipc(void)
{
    CUipcMemHandle handle;
    CUdeviceptr p;

    if (read(STDIN_FILENO, &handle, sizeof handle) != sizeof handle)
        return;
    TRY(CU(cuIpcOpenMemHandle_v2, &p, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    tell_range("inside of what another process has allocated", p + 5000, p, 100000);
    TRY(CU(cuIpcCloseMemHandle, p));
    result("once it is closed", range_of(&p, 0));
}

void ask_address_range_ipc(void)
{
    CUipcMemHandle handle;
    CUdeviceptr p;
    int fds[2], status;

    TRY(CU(cuMemAlloc_v2, &p, 100000));
    TRY(CU(cuIpcGetMemHandle, &handle, p));
    if (pipe(fds) || write(fds[1], &handle, sizeof handle) != sizeof handle)
        return;
    pid_t pid = fork();
    if (pid == 0) {
        dup2(fds[0], STDIN_FILENO);
        execl("/proc/self/exe", "facts", "--continue", "ipc", (char *)NULL);
        _exit(127);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return;
    says("the other process", WIFSIGNALED(status) ? "died of signal %d" : "ended with status %d",
         WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

/* ------------------------------------------------------------------ a graph's memory */

void ask_address_range_graph(void)
{
    CUgraph graph;
    CUgraphNode alloc, node, release;
    CUgraphExec exec;
    CUfunction empty;
    CUstream stream;
    CUDA_MEM_ALLOC_NODE_PARAMS_v1 params = {
        .poolProps = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                       .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = driver.device } },
        .bytesize = 100000,
    };

    TRY(new_stream(&stream));
    TRY(kernel(&empty, "empty"));
    TRY(CU(cuGraphCreate, &graph, 0));
    TRY(CU(cuGraphAddMemAllocNode, &alloc, graph, NULL, 0, &params));
    TRY(add_kernel(graph, &node, &alloc, empty, NULL));
    CUdeviceptr p = params.dptr;
    tell_range("when its node was added", p + 5000, p, 100000);
    TRY(CU(cuGraphAddMemFreeNode, &release, graph, &node, 1, p));
    TRY(new_exec(&exec, graph));
    tell_range("when its graph was instantiated", p + 5000, p, 100000);
    TRY(CU(cuGraphLaunch, exec, stream));
    tell_range("while its graph is launched", p + 5000, p, 100000);
    TRY(CU(cuStreamSynchronize, stream));
    tell_range("when the graph has freed it", p + 5000, p, 100000);
}
