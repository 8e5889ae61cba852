/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the library adds to a launch: bench_launch [ROUNDS]
 *
 * Run under dmi-run with a spec that names the kernel `armed` and not `plain`. Direct calls go to the
 * driver's own entry point, found in its symbol table without dlsym; wrapped ones to what dlsym
 * gives. Both alternate in short rounds, so that a noisy machine shifts both alike; the median of the
 * rounds is printed, in CPU time of the launching thread.
 *
 * "refused" launches have an empty grid: the driver returns at once, so the difference between wrapped
 * and direct is the library's own path and not the noise of a launch: of an armed one, to reserve room
 * in the ring and to cancel it. An armed launch that is real has a second launch after it, the copy.
 */
#include "tests/bench/bench.h"

#include <stdio.h>
#include <stdlib.h>

enum { REFUSED = 20000, REAL = 200, ELEMENTS = 576 };

typedef __typeof__(cuLaunchKernel) launch_fn;

static double ns_per_launch(launch_fn *launch, CUfunction f, CUdeviceptr out, unsigned grid, int n)
{
    void *params[] = { &out };
    uint64_t start = bench_thread_ns();
    for (int i = 0; i < n; i++) {
        CUresult r = launch(f, grid, 1, 1, 64, 1, 1, 0, NULL, params, NULL);
        if (r != (grid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE))
            bench_die("cuLaunchKernel", (int)r);
    }
    return (double)(bench_thread_ns() - start) / n;
}

static void compare(const char *what, launch_fn *direct, launch_fn *wrapped, CUfunction f,
                    CUdeviceptr out, unsigned grid, int n, int rounds)
{
    double *d = calloc((size_t)rounds, sizeof *d), *w = calloc((size_t)rounds, sizeof *w);
    if (!d || !w)
        bench_die("calloc", 0);
    for (int i = 0; i < 2 * rounds; i++) {
        /* direct, wrapped, wrapped, direct: neither is always the one that finds an idle queue */
        if ((i & 3) == 0 || (i & 3) == 3)
            d[i / 2] = ns_per_launch(direct, f, out, grid, n);
        else
            w[i / 2] = ns_per_launch(wrapped, f, out, grid, n);
        DIRECT(cuCtxSynchronize)();
    }
    double md = bench_median(d, rounds), mw = bench_median(w, rounds);
    printf("%-34s direct %9.1f ns, wrapped %9.1f ns, added %8.1f ns (%.2fx)\n", what, md, mw,
           mw - md, mw / md);
    free(d);
    free(w);
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 31;
    struct bench_kernels kernels;
    CUdeviceptr out;
    bench_start(&kernels);
    bench_has_library();
    CALL(cuMemAlloc_v2, &out, ELEMENTS * sizeof(float));
    launch_fn *direct = DIRECT(cuLaunchKernel), *wrapped = WRAPPED(cuLaunchKernel);
    ns_per_launch(wrapped, kernels.armed, out, 1, 1);
    compare("matches nothing, refused launch", direct, wrapped, kernels.plain, out, 0, REFUSED,
            rounds);
    compare("matches nothing, real launch", direct, wrapped, kernels.plain, out, 1, REAL, rounds);
    compare("armed, refused launch", direct, wrapped, kernels.armed, out, 0, REFUSED / 10, rounds);
    compare("armed (one 2304-byte record)", direct, wrapped, kernels.armed, out, 1, REAL, rounds);
    return 0;
}
