/* SPDX-License-Identifier: Apache-2.0 */
/* How long launches take while another thread copies, or loads modules; what a copy between eager launches costs. */
#include "facts.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define LAUNCHES   20000
#define COPY_BYTES (4u << 20)
#define IN_FLIGHT  64

static struct other {
    bool stop;
    CUstream stream;
    CUdeviceptr device;
    void *host;
    unsigned long n;
} other;

static void *copy_all_the_time(void *arg)
{
    (void)arg;
    CUresult r = driver.cuCtxSetCurrent(driver.context);
    while (r == CUDA_SUCCESS && !__atomic_load_n(&other.stop, __ATOMIC_RELAXED)) {
        r = driver.cuMemcpyDtoHAsync_v2(other.host, other.device, COPY_BYTES, other.stream);
        if (r == CUDA_SUCCESS)
            r = driver.cuStreamSynchronize(other.stream);
        other.n++;
    }
    return NULL;
}

static void *load_all_the_time(void *arg)
{
    CUmodule module;
    (void)arg;
    CUresult r = driver.cuCtxSetCurrent(driver.context);
    while (r == CUDA_SUCCESS && !__atomic_load_n(&other.stop, __ATOMIC_RELAXED)) {
        r = driver.cuModuleLoadData(&module, kernels_ptx);
        if (r == CUDA_SUCCESS)
            r = driver.cuModuleUnload(module);
        other.n++;
    }
    return NULL;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static CUresult time_launches(const char *how)
{
    static double values[LAUNCHES];
    unsigned n = rounds(LAUNCHES);
    CUfunction empty;
    CUstream stream;
    char what[96];

    PASS(kernel(&empty, "empty"));
    PASS(new_stream(&stream));
    PASS(launch(empty, 1, 1, stream, NULL));
    for (unsigned i = 0; i < n; i++) {
        uint64_t start = now_ns();
        PASS(launch(empty, 1, 1, stream, NULL));
        values[i] = (double)(now_ns() - start);
        if (i % IN_FLIGHT == IN_FLIGHT - 1)
            PASS(CU(cuStreamSynchronize, stream));
    }
    PASS(CU(cuStreamSynchronize, stream));
    qsort(values, n, sizeof *values, compare);
    snprintf(what, sizeof what, "%s: half of the launches take at most", how);
    figure(what, values[n / 2], "ns");
    snprintf(what, sizeof what, "%s: 99 of 100 take at most", how);
    figure(what, values[n - 1 - n / 100], "ns");
    snprintf(what, sizeof what, "%s: the longest", how);
    figure(what, values[n - 1], "ns");
    return CUDA_SUCCESS;
}

static CUresult beside(const char *how, void *(*work)(void *))
{
    pthread_t thread;
    char what[96];

    other.stop = false;
    other.n = 0;
    if (pthread_create(&thread, NULL, work, NULL))
        return CUDA_ERROR_UNKNOWN;
    CUresult r = time_launches(how);
    __atomic_store_n(&other.stop, true, __ATOMIC_RELAXED);
    pthread_join(thread, NULL);
    snprintf(what, sizeof what, "%s: so often meanwhile", how);
    figure(what, (double)other.n, "");
    return r;
}

void ask_launch_while_copying(void)
{
    CUdeviceptr unused;

    TRY(device_memory(&other.device, COPY_BYTES));
    TRY(pinned_memory(&other.host, &unused, COPY_BYTES));
    TRY(new_stream(&other.stream));
    TRY(time_launches("alone"));
    TRY(beside("another thread copies 4 MiB", copy_all_the_time));
    TRY(beside("another thread loads modules", load_all_the_time));
}

/* ------------------------------------------------------------------ eager launches that may overlap */

#define CHAIN 200

static CUresult launch_step(CUfunction step, CUstream stream, bool programmatic, uint64_t *ns)
{
    CUlaunchAttribute attribute = { .id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION };
    attribute.value.programmaticStreamSerializationAllowed = 1;
    CUlaunchConfig config = {
        .gridDimX = 1,
        .gridDimY = 1,
        .gridDimZ = 1,
        .blockDimX = 1,
        .blockDimY = 1,
        .blockDimZ = 1,
        .hStream = stream,
        .attrs = &attribute,
        .numAttrs = programmatic,
    };
    void *params[] = { ns };
    return CU(cuLaunchKernelEx, &config, step, params, NULL);
}

/* Kernels of 2 us; @between: an empty one after each, as a copy would be. us for each. */
static CUresult eager_us(double *us, bool programmatic, bool between)
{
    uint64_t ns = 2000;
    CUfunction step, empty;
    CUstream stream;
    CUevent start, end;
    float ms = 0;
    unsigned n = rounds(CHAIN);

    PASS(sm90_kernel(&step, "pdl_step"));
    PASS(kernel(&empty, "empty"));
    PASS(new_stream(&stream));
    PASS(CU(cuEventCreate, &start, CU_EVENT_DEFAULT));
    PASS(CU(cuEventCreate, &end, CU_EVENT_DEFAULT));
    for (int run = 0; run < 2; run++) {
        PASS(CU(cuEventRecord, start, stream));
        for (unsigned i = 0; i < n; i++) {
            PASS(launch_step(step, stream, programmatic, &ns));
            if (between)
                PASS(launch(empty, 1, 1, stream, NULL));
        }
        PASS(CU(cuEventRecord, end, stream));
        PASS(CU(cuStreamSynchronize, stream));
    }
    PASS(CU(cuEventElapsedTime, &ms, start, end));
    *us = (double)ms * 1000 / n;
    return CUDA_SUCCESS;
}

void ask_eager_overlap(void)
{
    double us;

    if (!has_programmatic_launch())
        return;
    TRY(eager_us(&us, true, false));
    figure("an eager kernel of 2 us with programmatic serialization", us, "us");
    TRY(eager_us(&us, false, false));
    figure("without", us, "us");
    TRY(eager_us(&us, true, true));
    figure("with it, and an empty kernel after each", us, "us");
    TRY(eager_us(&us, false, true));
    figure("without, and an empty kernel after each", us, "us");
}
