/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that the library makes at every launch, or might make. */
#include "facts.h"

#include <dmi/ring.h>

#include <string.h>

struct subject {
    CUstream stream;
    CUfunction function;
    CUdeviceptr memory;
};

static CUresult get_current(void *arg, unsigned i)
{
    CUcontext context;
    (void)arg;
    (void)i;
    return driver.cuCtxGetCurrent(&context);
}

static CUresult is_capturing(void *arg, unsigned i)
{
    const struct subject *s = arg;
    CUstreamCaptureStatus status;
    (void)i;
    return driver.cuStreamIsCapturing(s->stream, &status);
}

static CUresult is_capturing_null(void *arg, unsigned i)
{
    CUstreamCaptureStatus status;
    (void)arg;
    (void)i;
    return driver.cuStreamIsCapturing(NULL, &status);
}

static CUresult capture_info(void *arg, unsigned i)
{
    const struct subject *s = arg;
    CUstreamCaptureStatus status;
    (void)i;
    return driver.cuStreamGetCaptureInfo_v2(s->stream, &status, NULL, NULL, NULL, NULL);
}

static CUresult exchange_mode(void *arg, unsigned i)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    (void)arg;
    (void)i;
    CUresult r = driver.cuThreadExchangeStreamCaptureMode(&mode);
    return r == CUDA_SUCCESS ? driver.cuThreadExchangeStreamCaptureMode(&mode) : r;
}

static CUresult pointer_context(void *arg, unsigned i)
{
    const struct subject *s = arg;
    CUcontext context;
    (void)i;
    return driver.cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, s->memory);
}

#define IN_FLIGHT                                                                                  \
    128 /* after so many launches the stream is waited for, outside of what is measured */

static CUresult launch_ns(double *ns, struct subject *s, size_t parameter_bytes)
{
    static _Alignas(16) unsigned char parameter[4096];
    static double values[2000];
    void *params[] = { parameter };
    unsigned n = rounds(LENGTH(values));

    if (parameter_bytes)
        PASS(kernel(&s->function, parameter_bytes == 8 ? "empty8" : "idle_copy"));
    else
        PASS(kernel(&s->function, "empty"));
    ((struct dmi_graph_copy *)(void *)parameter)->state = s->memory; /* of idle_copy */
    for (unsigned i = 0; i < n; i++) {
        uint64_t start = now_ns();
        PASS(launch(s->function, 1, 1, s->stream, parameter_bytes ? params : NULL));
        values[i] = (double)(now_ns() - start);
        if (i % IN_FLIGHT == IN_FLIGHT - 1)
            PASS(CU(cuStreamSynchronize, s->stream));
    }
    *ns = median(values, n);
    return CU(cuStreamSynchronize, s->stream);
}

void ask_call_costs(void)
{
    static const struct {
        const char *name;
        timed_call *call;
    } calls[] = {
        { "cuCtxGetCurrent", get_current },
        { "cuStreamIsCapturing", is_capturing },
        { "cuStreamIsCapturing of the NULL stream", is_capturing_null },
        { "cuStreamGetCaptureInfo_v2, nothing captured", capture_info },
        { "cuThreadExchangeStreamCaptureMode, there and back", exchange_mode },
        { "cuPointerGetAttribute, the context", pointer_context },
    };
    struct subject s;
    double ns;

    TRY(new_stream(&s.stream));
    TRY(device_memory(&s.memory, 4096));
    for (size_t i = 0; i < LENGTH(calls); i++) {
        CUresult r = time_calls(&ns, rounds(200), 50, calls[i].call, &s);
        if (r == CUDA_SUCCESS)
            figure(calls[i].name, ns, "ns");
        else
            result(calls[i].name, r);
    }
    TRY(launch_ns(&ns, &s, 0));
    figure("cuLaunchKernel, no parameter", ns, "ns");
    TRY(launch_ns(&ns, &s, 8));
    figure("cuLaunchKernel, 8 bytes", ns, "ns");
    TRY(launch_ns(&ns, &s, sizeof(struct dmi_graph_copy)));
    figure("cuLaunchKernel, 136 bytes", ns, "ns");
}
