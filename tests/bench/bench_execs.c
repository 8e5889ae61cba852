/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What execs cost that are kept: bench_execs [EXECS [KERNELS [SITES]]]
 *
 * Each is a chain of KERNELS, of which SITES are the kernel `armed`; its graph is destroyed as soon as it is
 * instantiated, as PyTorch does. Run alone, and under dmi-run with a spec that names `armed`: prints CPU time of the calls,
 * and bytes an exec of device memory and of heap that the library and the driver hold after all are instantiated, and
 * after each was launched. Heap is counted by who calls malloc() and free().
 */
#include "tests/bench/bench.h"

#include <link.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------- heap by library */

extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);
extern void __libc_free(void *p);

struct owner {
    const char *name;
    uintptr_t from, to; /* where it is mapped */
    atomic_llong bytes, blocks;
};
static struct owner owners[] = { { .name = "libdmi_preload" }, { .name = "libcuda" } };
enum { LIBRARY, DRIVER, N_OWNERS };

static int find_owner(struct dl_phdr_info *info, size_t n, void *data)
{
    (void)n;
    (void)data;
    for (int i = 0; i < N_OWNERS; i++) {
        if (!strstr(info->dlpi_name, owners[i].name))
            continue;
        for (int k = 0; k < info->dlpi_phnum; k++) {
            uintptr_t end =
                info->dlpi_addr + info->dlpi_phdr[k].p_vaddr + info->dlpi_phdr[k].p_memsz;
            if (info->dlpi_phdr[k].p_type == PT_LOAD && end > owners[i].to)
                owners[i].to = end;
        }
        owners[i].from = info->dlpi_addr;
    }
    return 0;
}

static void *count(const void *caller, void *p, int sign)
{
    for (int i = 0; p && i < N_OWNERS; i++)
        if ((uintptr_t)caller - owners[i].from < owners[i].to - owners[i].from) {
            atomic_fetch_add(&owners[i].bytes, sign * (long long)(malloc_usable_size(p) + 8));
            atomic_fetch_add(&owners[i].blocks, sign);
        }
    return p;
}

/* Found by all libraries, in place of libc's. */
#define COUNTED __attribute__((noinline, visibility("default")))

COUNTED void *malloc(size_t n)
{
    return count(__builtin_return_address(0), __libc_malloc(n), 1);
}

COUNTED void *calloc(size_t n, size_t size)
{
    return count(__builtin_return_address(0), __libc_calloc(n, size), 1);
}

COUNTED void *realloc(void *p, size_t n)
{
    count(__builtin_return_address(0), p, -1);
    return count(__builtin_return_address(0), __libc_realloc(p, n), 1);
}

COUNTED void free(void *p)
{
    count(__builtin_return_address(0), p, -1);
    __libc_free(p);
}

/* ------------------------------------------------------------------------- execs */

static CUstream stream;
static CUdeviceptr out;

static CUgraph build(const struct bench_kernels *kernels, int n_kernels, int n_sites)
{
    CUgraph graph;
    CUgraphNode last = NULL;
    void *params[] = { &out };
    CALL(cuGraphCreate, &graph, 0);
    for (int i = 0, sites = 0; i < n_kernels; i++) {
        CUgraphNode before = last;
        int is_site = (i + 1) * n_sites / n_kernels > sites;
        sites += is_site;
        CUDA_KERNEL_NODE_PARAMS_v2 k = { .func = is_site ? kernels->armed : kernels->plain,
                                         .gridDimX = 1,
                                         .gridDimY = 1,
                                         .gridDimZ = 1,
                                         .blockDimX = 64,
                                         .blockDimY = 1,
                                         .blockDimZ = 1,
                                         .kernelParams = params };
        CALL(cuGraphAddKernelNode_v2, &last, graph, &before, i ? 1 : 0, &k);
    }
    return graph;
}

struct held {
    long long bytes[N_OWNERS], blocks[N_OWNERS], device;
};

static struct held held_now(void)
{
    struct held h;
    size_t n_free, total;
    CALL(cuMemGetInfo_v2, &n_free, &total);
    for (int i = 0; i < N_OWNERS; i++) {
        h.bytes[i] = atomic_load(&owners[i].bytes);
        h.blocks[i] = atomic_load(&owners[i].blocks);
    }
    h.device = (long long)(total - n_free);
    return h;
}

static void report(const char *when, const struct held *before, int n)
{
    struct held now = held_now();
    printf("  %-22s an exec: library %6.0f bytes in %4.1f blocks, driver %7.0f bytes in %5.1f, "
           "device %7.0f bytes\n",
           when, (double)(now.bytes[LIBRARY] - before->bytes[LIBRARY]) / n,
           (double)(now.blocks[LIBRARY] - before->blocks[LIBRARY]) / n,
           (double)(now.bytes[DRIVER] - before->bytes[DRIVER]) / n,
           (double)(now.blocks[DRIVER] - before->blocks[DRIVER]) / n,
           (double)(now.device - before->device) / n);
}

int main(int argc, char **argv)
{
    int n = argc > 1 ? atoi(argv[1]) : 500, n_kernels = argc > 2 ? atoi(argv[2]) : 40,
        n_sites = argc > 3 ? atoi(argv[3]) : 4;
    struct bench_kernels kernels;
    uint64_t instantiate_ns = 0, destroy_ns = 0, launch_ns = 0;
    bench_start(&kernels);
    bench_has_library();
    dl_iterate_phdr(find_owner, NULL);
    CALL(cuMemAlloc_v2, &out, 4096);
    CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    CUgraphExec *execs = calloc((size_t)n, sizeof(CUgraphExec));
    if (!execs)
        bench_die("calloc", 0);
    struct held before = held_now();
    for (int i = 0; i < n; i++) {
        CUgraph graph = build(&kernels, n_kernels, n_sites);
        uint64_t t[3] = { bench_thread_ns() };
        CALL(cuGraphInstantiateWithFlags, &execs[i], graph, 0);
        t[1] = bench_thread_ns();
        CALL(cuGraphDestroy, graph);
        t[2] = bench_thread_ns();
        instantiate_ns += t[1] - t[0];
        destroy_ns += t[2] - t[1];
    }
    printf("%d execs of %d kernels, %d of them sites\n", n, n_kernels, n_sites);
    report("instantiated,", &before, n);
    for (int i = 0; i < n; i++) {
        uint64_t t = bench_thread_ns();
        CALL(cuGraphLaunch, execs[i], stream);
        launch_ns += bench_thread_ns() - t;
        CALL(cuStreamSynchronize, stream);
    }
    report("launched,", &before, n);
    printf("  calls,                  cuGraphInstantiate %.1f us, cuGraphDestroy of its graph %.1f "
           "us, its first launch "
           "%.1f us\n",
           (double)instantiate_ns / n / 1e3, (double)destroy_ns / n / 1e3,
           (double)launch_ns / n / 1e3);
    for (int i = 0; i < n; i++)
        CALL(cuGraphExecDestroy, execs[i]);
    report("destroyed,", &before, n);
    return 0;
}
