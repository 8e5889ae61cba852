/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a tap costs: bench_tap [ROUNDS]
 *
 * Run under dmi-run with a spec that has the tap `tapped` and not `other`. Three costs, each the median of rounds in CPU time of
 * the calling thread: where there is no library (the program starts itself again without it), where no site has the name, and
 * where the tensor is copied. The peer is the driver's own launch of an empty kernel, past the library, in the same rounds.
 */
#include "tests/bench/bench.h"

#include <dmi/dtype.h>
#include <dmi/tap.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MANY = 100000, FEW = 200, ELEMENTS = 576 };

static double ns_per_tap(const char *name, CUdeviceptr data, int n)
{
    uint64_t start = bench_thread_ns();
    for (int i = 0; i < n; i++) {
        struct dmi_tap tap = { .size = sizeof tap,
                               .version = DMI_TAP_VERSION,
                               .name = name,
                               .layer = i % 30,
                               .data = (const void *)(uintptr_t)data,
                               .dtype = DMI_DTYPE_F32,
                               .n_dims = 2,
                               .row_dims = 1,
                               .count = { 1, ELEMENTS },
                               .stride = { ELEMENTS * 4, 4 } };
        dmi_tap_here(&tap);
    }
    return (double)(bench_thread_ns() - start) / n;
}

static double ns_per_launch(__typeof__(cuLaunchKernel) *launch, CUfunction f, CUdeviceptr out,
                            int n)
{
    void *params[] = { &out };
    uint64_t start = bench_thread_ns();
    for (int i = 0; i < n; i++)
        if (launch(f, 1, 1, 1, 64, 1, 1, 0, NULL, params, NULL) != CUDA_SUCCESS)
            bench_die("cuLaunchKernel", 0);
    return (double)(bench_thread_ns() - start) / n;
}

/* The same program without the library says what a tap costs there. */
static void run_without(char **argv)
{
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        unsetenv("LD_PRELOAD");
        setenv("BENCH_TAP_ALONE", "1", 1);
        execv("/proc/self/exe", argv);
        _exit(127);
    }
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child || status)
        bench_die("the program without the library", 0);
}

static void alone(int rounds)
{
    double *ns = calloc((size_t)rounds, sizeof *ns);
    for (int i = 0; ns && i < rounds; i++)
        ns[i] = ns_per_tap("tapped", 4096, MANY);
    if (ns)
        printf("%-34s %9.1f ns\n", "without the library", bench_median(ns, rounds));
    free(ns);
}

static void compare(const char *what, const char *name, CUdeviceptr data, CUfunction f, int n,
                    int rounds)
{
    double *tap = calloc((size_t)rounds, sizeof *tap),
           *launch = calloc((size_t)rounds, sizeof *launch);
    if (!tap || !launch)
        bench_die("calloc", 0);
    for (int i = 0; i < rounds; i++) {
        tap[i] = ns_per_tap(name, data, n);
        DIRECT(cuCtxSynchronize)();
        launch[i] = ns_per_launch(DIRECT(cuLaunchKernel), f, data, FEW);
        DIRECT(cuCtxSynchronize)();
    }
    double t = bench_median(tap, rounds), l = bench_median(launch, rounds);
    printf("%-34s %9.1f ns, a launch %9.1f ns (%.2fx)\n", what, t, l, t / l);
    free(tap);
    free(launch);
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 31;
    struct bench_kernels kernels;
    CUdeviceptr data;
    if (getenv("BENCH_TAP_ALONE")) {
        alone(rounds);
        return 0;
    }
    run_without(argv);
    bench_start(&kernels);
    bench_has_library();
    CALL(cuMemAlloc_v2, &data, ELEMENTS * sizeof(float));
    ns_per_tap("tapped", data, 1);
    compare("no site has the name", "other", data, kernels.plain, MANY, rounds);
    compare("captured (one 2304-byte record)", "tapped", data, kernels.plain, FEW, rounds);
    return 0;
}
