/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the benchmarks of driver calls share: the driver's own entry points, past every library that
 * intercepts them, a context with kernels that do nothing, clocks and medians. For one thread.
 */
#ifndef TESTS_BENCH_BENCH_H
#define TESTS_BENCH_BENCH_H

/* Declares the _v2 entries by name. */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include <dlfcn.h>
#include <stdint.h>

extern void *bench_library; /* libcuda.so.1 */

_Noreturn void bench_die(const char *what, int code);

/* dlsym() in the driver, past every library that intercepts it */
void *bench_direct(const char *name);

/* The driver's entry point, and what a program gets that looks it up. */
#define DIRECT(name)  ((__typeof__(&name))bench_direct(#name))
#define WRAPPED(name) ((__typeof__(&name))dlsym(bench_library, #name))

#define CALL(name, ...)                                                                            \
    do {                                                                                           \
        CUresult _r = WRAPPED(name)(__VA_ARGS__);                                                  \
        if (_r != CUDA_SUCCESS)                                                                    \
            bench_die(#name, (int)_r);                                                             \
    } while (0)

/* A context, and a module of two empty kernels of one pointer: `plain`, and `armed`, which specs name. */
struct bench_kernels {
    CUfunction plain, armed;
};
void bench_start(struct bench_kernels *kernels);

/* The module in a file: PTX, or a fatbin. */
CUmodule bench_module(const char *path);

/* Does a library intercept the driver's functions? Prints a line if not. */
int bench_has_library(void);

uint64_t bench_now_ns(void);

/* CPU time of the calling thread: what a call costs, even where other processes take the CPU in between. */
uint64_t bench_thread_ns(void);

/* CPU time of the process, all threads. */
uint64_t bench_cpu_ns(void);

/* Sorts @v. */
double bench_median(double *v, int n);

#endif
