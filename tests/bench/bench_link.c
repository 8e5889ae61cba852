/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How fast the records of sites leave the device: bench_link DATA [SECONDS [MBYTES]]
 *
 * Run under dmi-run with drain.yaml (mode complete) on the stand-in, whose link to the host has a set
 * bandwidth (DMI_STANDIN_DTOH_BPS). A kernel that is a site is launched as fast as the library lets it, so
 * that the sites always produce more than is carried; what counts is from the first launch until all of
 * it is in a segment. DATA: `normal` for float32 as activations have it (normally distributed), `noise` for
 * bytes that no codec shrinks, `zero`. Prints one line: bytes, seconds, CPU seconds of the process.
 */
#include "tests/bench/bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COLUMNS = 4096 };

static uint64_t next(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static void fill(const char *data, float *to, size_t n)
{
    uint64_t state = 1;
    for (size_t i = 0; i < n; i++) {
        uint64_t bits = next(&state);
        double u = ((double)(bits >> 11) + 0.5) / 9007199254740992.0,
               v = (double)(next(&state) >> 11) / 9007199254740992.0;
        float normal = (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
        if (!strcmp(data, "normal"))
            to[i] = normal;
        else if (!strcmp(data, "noise"))
            memcpy(&to[i], &bits, sizeof to[i]);
        else
            to[i] = 0;
    }
}

int main(int argc, char **argv)
{
    const char *data = argc > 1 ? argv[1] : "normal";
    double seconds = argc > 2 ? atof(argv[2]) : 2;
    uint32_t rows =
        (uint32_t)((argc > 3 ? atof(argv[3]) : 1) * (1 << 20) / (COLUMNS * sizeof(float)));
    size_t n_bytes = (size_t)rows * COLUMNS * sizeof(float);
    struct bench_kernels kernels;
    CUdeviceptr out;
    bench_start(&kernels);
    CALL(cuMemAlloc_v2, &out, n_bytes);
    float *host = malloc(n_bytes);
    int (*flush)(uint64_t) = (int (*)(uint64_t))dlsym(RTLD_DEFAULT, "dmi_flush");
    if (!host || !flush)
        bench_die("no memory, or no library is loaded", 0);
    fill(data, host, n_bytes / sizeof *host);
    CALL(cuMemcpyHtoD_v2, out, host, n_bytes);
    __typeof__(cuLaunchKernel) *launch = WRAPPED(cuLaunchKernel);
    void *params[] = { &out };
    uint64_t n = 0, start = 0, cpu = 0;
    /* the first launch creates the ring */
    for (; !n || (double)(bench_now_ns() - start) < seconds * 1e9; n++) {
        CUresult r = launch(kernels.armed, rows, 1, 1, 64, 1, 1, 0, NULL, params, NULL);
        if (r != CUDA_SUCCESS)
            bench_die("cuLaunchKernel", (int)r);
        if (!n) {
            CALL(cuCtxSynchronize);
            if (flush(10000000000u))
                bench_die("dmi_flush", 0);
            start = bench_now_ns();
            cpu = bench_cpu_ns();
        }
    }
    CALL(cuCtxSynchronize);
    if (flush(60000000000u))
        bench_die("dmi_flush", 0);
    printf("%llu %.6f %.6f\n", (unsigned long long)((n - 1) * n_bytes),
           (double)(bench_now_ns() - start) / 1e9, (double)(bench_cpu_ns() - cpu) / 1e9);
    return 0;
}
