/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the library adds to a launch: bench_launch [ROUNDS]
 *
 * Run under dmi-run with a spec that names the kernel `armed` and not `plain`. Direct calls go to the
 * driver's own entry point, found in its symbol table past everybody's dlsym; wrapped ones to what
 * dlsym gives. Both alternate in short rounds and the median of the rounds is told, so that a noisy
 * machine shifts both alike.
 *
 * "refused" launches have an empty grid: the driver returns at once, so the difference between wrapped
 * and direct is the library's own path and not the noise of a launch.
 */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { REFUSED = 20000, REAL = 200, ELEMENTS = 576 };

static const char ptx[] = ".version 6.4\n.target sm_75\n.address_size 64\n"
                          ".visible .entry plain(.param .u64 p_out)\n{\nret;\n}\n"
                          ".visible .entry armed(.param .u64 a_out)\n{\nret;\n}\n";

static void *library;

static _Noreturn void die(const char *what, int code)
{
    fprintf(stderr, "bench_launch: %s gave %d\n", what, code);
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

/* dlsym() as if nobody stood in front of it */
static void *direct_symbol(const char *name)
{
    struct link_map *map = NULL;
    if (dlinfo(library, RTLD_DI_LINKMAP, &map))
        die("dlinfo", 0);
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
        die("the driver's symbol table", 0);
    uint32_t n = count_symbols(hash);
    for (uint32_t i = 0; i < n; i++)
        if (symbols[i].st_shndx != SHN_UNDEF && !strcmp(strings + symbols[i].st_name, name))
            return (void *)(map->l_addr + symbols[i].st_value);
    die(name, 0);
}

static uint64_t now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

typedef __typeof__(cuLaunchKernel) launch_fn;

static double ns_per_launch(launch_fn *launch, CUfunction f, CUdeviceptr out, unsigned grid, int n)
{
    void *params[] = {&out};
    uint64_t start = now_ns();
    for (int i = 0; i < n; i++) {
        CUresult r = launch(f, grid, 1, 1, 64, 1, 1, 0, NULL, params, NULL);
        if (r != (grid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE))
            die("cuLaunchKernel", (int)r);
    }
    return (double)(now_ns() - start) / n;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return v[n / 2];
}

#define ENTRY(name) ((__typeof__(&name))direct_symbol(#name))

static void compare(const char *what, launch_fn *direct, launch_fn *wrapped, CUfunction f, CUdeviceptr out,
                    unsigned grid, int n, int rounds)
{
    double *d = calloc((size_t)rounds, sizeof *d), *w = calloc((size_t)rounds, sizeof *w);
    if (!d || !w)
        die("calloc", 0);
    for (int i = 0; i < 2 * rounds; i++) {
        /* direct, wrapped, wrapped, direct: neither is always the one that finds an idle queue */
        if ((i & 3) == 0 || (i & 3) == 3)
            d[i / 2] = ns_per_launch(direct, f, out, grid, n);
        else
            w[i / 2] = ns_per_launch(wrapped, f, out, grid, n);
        ENTRY(cuCtxSynchronize)();
    }
    double md = median(d, rounds), mw = median(w, rounds);
    printf("%-34s direct %9.1f ns, wrapped %9.1f ns, added %8.1f ns (%.2fx)\n", what, md, mw, mw - md, mw / md);
    free(d);
    free(w);
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 31;
    CUcontext context;
    CUmodule module;
    CUfunction plain, armed;
    CUdeviceptr out;
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library)
        die("dlopen(libcuda.so.1)", 0);
#define CALL(name, ...)                                                                            \
    do {                                                                                           \
        __typeof__(&name) _fn = (__typeof__(&name))dlsym(library, #name);                          \
        CUresult _r = _fn(__VA_ARGS__);                                                            \
        if (_r != CUDA_SUCCESS)                                                                    \
            die(#name, (int)_r);                                                                   \
    } while (0)
    CALL(cuInit, 0);
    CALL(cuCtxCreate_v2, &context, 0, 0);
    CALL(cuModuleLoadData, &module, ptx);
    CALL(cuModuleGetFunction, &plain, module, "plain");
    CALL(cuModuleGetFunction, &armed, module, "armed");
    CALL(cuMemAlloc_v2, &out, ELEMENTS * sizeof(float));
    launch_fn *direct = ENTRY(cuLaunchKernel), *wrapped = (launch_fn *)dlsym(library, "cuLaunchKernel");
    if (direct == wrapped)
        printf("no library in front of the driver: both columns are the driver\n");
    ns_per_launch(wrapped, armed, out, 1, 1);
    compare("matches nothing, refused launch", direct, wrapped, plain, out, 0, REFUSED, rounds);
    compare("matches nothing, real launch", direct, wrapped, plain, out, 1, REAL, rounds);
    compare("armed (one 2304-byte record)", direct, wrapped, armed, out, 1, REAL, rounds);
    return 0;
}
