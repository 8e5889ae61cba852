/* SPDX-License-Identifier: Apache-2.0 */
/* Green contexts: which of the primary context's things can be used on their streams. */
#include "facts.h"

#include <stdio.h>

struct green {
    CUgreenCtx green;
    CUcontext context;
    CUstream stream;
};

/* One with the smallest part of the multiprocessors. */
static CUresult new_green(struct green *g)
{
    CUdevResource all, part;
    CUdevResourceDesc description;
    unsigned n = 1;

    PASS(CU(cuDeviceGetDevResource, driver.device, &all, CU_DEV_RESOURCE_TYPE_SM));
    PASS(CU(cuDevSmResourceSplitByCount, &part, &n, &all, NULL, 0, 1));
    PASS(CU(cuDevResourceGenerateDesc, &description, &part, 1));
    PASS(CU(cuGreenCtxCreate, &g->green, description, driver.device, CU_GREEN_CTX_DEFAULT_STREAM));
    PASS(CU(cuCtxFromGreenCtx, &g->context, g->green));
    return CU(cuGreenCtxStreamCreate, &g->stream, g->green, CU_STREAM_NON_BLOCKING, 0);
}

static void tell_launch(const char *what, CUfunction function, CUstream stream)
{
    CUdeviceptr p = 0;
    uint32_t value = 7, got = 0;
    void *params[] = { &p, &value };

    TRY(device_memory(&p, 64));
    CUresult r = launch(function, 1, 1, stream, params);
    if (r == CUDA_SUCCESS)
        r = CU(cuStreamSynchronize, stream);
    if (r == CUDA_SUCCESS)
        r = CU(cuMemcpyDtoH_v2, &got, p, 4);
    if (r == CUDA_SUCCESS)
        says(what, got == value ? "runs" : "does not run");
    else
        result(what, r);
}

static const char *name_of(const struct green *g, CUcontext context)
{
    return context == driver.context ? "the primary context"
           : context == g->context   ? "the green context's CUcontext"
           : context                 ? "another"
                                     : "none";
}

void ask_green_context(void)
{
    struct green g;
    CUfunction poke;
    CUkernel of_library;
    CUlibrary library;
    CUcontext context = NULL;
    CUstream ours;
    CUevent event;
    unsigned long long ids[2] = { 0, 0 };

    TRY(kernel(&poke, "poke"));
    TRY(CU(cuLibraryLoadData, &library, kernels_ptx, NULL, NULL, 0, NULL, NULL, 0));
    TRY(CU(cuLibraryGetKernel, &of_library, library, "poke"));
    TRY(new_stream(&ours));
    TRY(new_green(&g));
    tell_launch("the primary context's function on a green stream", poke, g.stream);
    tell_launch("a library's kernel on it", (CUfunction)of_library, g.stream);
    TRY(CU(cuStreamGetCtx, g.stream, &context));
    says("cuStreamGetCtx of a green stream", "%s", name_of(&g, context));
    TRY(CU(cuCtxSetCurrent, g.context));
    TRY(CU(cuCtxGetCurrent, &context));
    says("cuCtxGetCurrent, the green one made current", "%s", name_of(&g, context));
    TRY(CU(cuCtxGetId, driver.context, &ids[0]));
    TRY(CU(cuCtxGetId, g.context, &ids[1]));
    says("both have one cuCtxGetId", ids[0] == ids[1] ? "yes" : "no");
    tell_launch("green current: the primary context's function on a green stream", poke, g.stream);
    tell_launch("green current: the same on a stream of the primary context", poke, ours);
    tell_launch("green current: a library's kernel on a green stream", (CUfunction)of_library,
                g.stream);
    result("green current: an event", CU(cuEventCreate, &event, CU_EVENT_DISABLE_TIMING));
    result("green current: recorded on a stream of the primary context",
           CU(cuEventRecord, event, ours));
    TRY(CU(cuCtxSetCurrent, driver.context));
    result("destroying it with its stream there", CU(cuGreenCtxDestroy, g.green));
    tell_launch("the primary context's function afterwards", poke, ours);
}
