/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/bench/bench.h"

#include <elf.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char ptx[] = ".version 6.4\n.target sm_75\n.address_size 64\n"
                          ".visible .entry plain(.param .u64 p_out)\n{\nret;\n}\n"
                          ".visible .entry armed(.param .u64 a_out)\n{\nret;\n}\n";

void *bench_library;

void bench_die(const char *what, int code)
{
    fprintf(stderr, "%s gave %d\n", what, code);
    exit(2);
}

/* The number of symbols is not in the dynamic section: the GNU hash's longest chain ends at the last. */
static uint32_t count_symbols(const uint32_t *hash)
{
    uint32_t n_buckets = hash[0], first = hash[1], bloom = hash[2], last = 0;
    const uint32_t *buckets = hash + 4 + bloom * (sizeof(ElfW(Addr)) / 4);
    const uint32_t *chain = buckets + n_buckets;
    for (uint32_t i = 0; i < n_buckets; i++)
        last = buckets[i] > last ? buckets[i] : last;
    if (last < first)
        return first;
    while (!(chain[last - first] & 1))
        last++;
    return last + 1;
}

void *bench_direct(const char *name)
{
    struct link_map *map = NULL;
    if (dlinfo(bench_library, RTLD_DI_LINKMAP, &map))
        bench_die("dlinfo", 0);
    const ElfW(Sym) *symbols = NULL;
    const char *strings = NULL;
    const uint32_t *hash = NULL;
    for (const ElfW(Dyn) *d = map->l_ld; d->d_tag != DT_NULL; d++) {
        if (d->d_tag == DT_SYMTAB)
            symbols = (const void *)d->d_un.d_ptr;
        else if (d->d_tag == DT_STRTAB)
            strings = (const void *)d->d_un.d_ptr;
        else if (d->d_tag == DT_GNU_HASH)
            hash = (const void *)d->d_un.d_ptr;
    }
    if (!symbols || !strings || !hash)
        bench_die("the driver's symbol table", 0);
    uint32_t n = count_symbols(hash);
    for (uint32_t i = 0; i < n; i++)
        if (symbols[i].st_shndx != SHN_UNDEF && !strcmp(strings + symbols[i].st_name, name))
            return (void *)(map->l_addr + symbols[i].st_value);
    bench_die(name, 0);
}

void bench_start(struct bench_kernels *kernels)
{
    CUcontext context;
    CUmodule module;
    bench_library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!bench_library)
        bench_die("dlopen(libcuda.so.1)", 0);
    CALL(cuInit, 0);
    CALL(cuCtxCreate_v2, &context, 0, 0);
    CALL(cuModuleLoadData, &module, ptx);
    CALL(cuModuleGetFunction, &kernels->plain, module, "plain");
    CALL(cuModuleGetFunction, &kernels->armed, module, "armed");
}

CUmodule bench_module(const char *path)
{
    enum { MOST = 8 << 20 };
    CUmodule module;
    FILE *file = fopen(path, "rb");
    char *image = calloc(1, MOST);
    if (!file || !image || !fread(image, 1, MOST - 1, file))
        bench_die(path, 0);
    fclose(file);
    CALL(cuModuleLoadData, &module, image);
    free(image);
    return module;
}

int bench_has_library(void)
{
    if (WRAPPED(cuLaunchKernel) != DIRECT(cuLaunchKernel))
        return 1;
    printf("no library is loaded: both columns show the driver\n");
    return 0;
}

static uint64_t read_clock(clockid_t clock)
{
    struct timespec ts;
    clock_gettime(clock, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

uint64_t bench_now_ns(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

uint64_t bench_thread_ns(void)
{
    return read_clock(CLOCK_THREAD_CPUTIME_ID);
}

uint64_t bench_cpu_ns(void)
{
    return read_clock(CLOCK_PROCESS_CPUTIME_ID);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

double bench_median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return v[n / 2];
}
