/* SPDX-License-Identifier: Apache-2.0 */
/* Which other calls are allowed while a stream is captured in the strictest mode, and in which thread. */
#include "facts.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

/* A stream that is captured in global mode, one empty kernel into it. */
static CUresult begin(CUstream *stream)
{
    CUfunction empty;

    PASS(kernel(&empty, "empty"));
    PASS(new_stream(stream));
    PASS(CU(cuStreamBeginCapture_v2, *stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    return launch(empty, 1, 1, *stream, NULL);
}

/* ------------------------------------------------------------------ other threads */

struct other {
    bool relaxed;
    bool drain; /* as the library's drain does: copies on a stream of its own, and waits for them */
    CUdeviceptr memory;
    CUstream stream;
    CUresult result;
};

static CUresult drain(const struct other *o)
{
    static unsigned char pageable[4096];

    for (int i = 0; i < 20; i++) {
        PASS(CU(cuMemcpyDtoHAsync_v2, pageable, o->memory, sizeof pageable, o->stream));
        PASS(CU(cuStreamSynchronize, o->stream));
    }
    return CUDA_SUCCESS;
}

static void *other_main(void *arg)
{
    struct other *o = arg;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUdeviceptr p;

    o->result = CU(cuCtxSetCurrent, driver.context);
    if (o->result == CUDA_SUCCESS && o->relaxed)
        o->result = CU(cuThreadExchangeStreamCaptureMode, &mode);
    if (o->result == CUDA_SUCCESS)
        o->result = o->drain ? drain(o) : CU(cuMemAlloc_v2, &p, 4096);
    return NULL;
}

static void other_thread(const char *how, bool relaxed, bool as_drain)
{
    struct other o = { .relaxed = relaxed, .drain = as_drain };
    CUstream stream;
    CUgraph graph;
    pthread_t thread;
    char what[96];

    TRY(device_memory(&o.memory, 4096));
    TRY(new_stream(&o.stream));
    TRY(begin(&stream));
    if (pthread_create(&thread, NULL, other_main, &o) || pthread_join(thread, NULL))
        return;
    snprintf(what, sizeof what, "%s in another thread", how);
    result(what, o.result);
    snprintf(what, sizeof what, "%s: the capture is then", how);
    says(what, "%s", capture_status_text(stream));
    snprintf(what, sizeof what, "%s works, and the capture goes on", how);
    if (relaxed)
        holds(what, o.result == CUDA_SUCCESS && capture_is_active(stream));
    snprintf(what, sizeof what, "%s: ending the capture", how);
    result(what, CU(cuStreamEndCapture, stream, &graph));
}

void ask_capture_modes(void)
{
    other_thread("cuMemAlloc, not relaxed", false, false);
    other_thread("cuMemAlloc, relaxed", true, false);
    other_thread("copies on a stream of its own, not relaxed", false, true);
    other_thread("copies on a stream of its own, relaxed", true, true);
}

/* ------------------------------------------------------------------ the capturing thread */

/* What happens at an eager launch on another stream, or when a kernel is looked up. */
struct calls {
    CUstream stream; /* another, not captured */
    CUfunction function;
    CUdeviceptr memory;
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec exec;
};

static CUresult address_range(struct calls *c)
{
    CUdeviceptr base;
    size_t n;
    return CU(cuMemGetAddressRange_v2, &base, &n, c->memory);
}

static CUresult is_capturing(struct calls *c)
{
    CUstreamCaptureStatus status;
    return CU(cuStreamIsCapturing, c->stream, &status);
}

static CUresult parameter_info(struct calls *c)
{
    size_t offset, size;
    return CU(cuFuncGetParamInfo, c->function, 0, &offset, &size);
}

static CUresult function_name(struct calls *c)
{
    const char *name;
    return CU(cuFuncGetName, &name, c->function);
}

static CUresult launch_other(struct calls *c)
{
    uint32_t value = 1;
    void *params[] = { &c->memory, &value };
    return launch(c->function, 1, 1, c->stream, params);
}

static CUresult set_parameters(struct calls *c)
{
    uint32_t value = 2;
    void *params[] = { &c->memory, &value };
    CUDA_KERNEL_NODE_PARAMS_v2 k = node_params(c->function, 1, 1, params);
    return CU(cuGraphExecKernelNodeSetParams_v2, c->exec, c->node, &k);
}

static CUresult switch_node(struct calls *c)
{
    return CU(cuGraphNodeSetEnabled, c->exec, c->node, 1);
}

static CUresult launch_graph(struct calls *c)
{
    return CU(cuGraphLaunch, c->exec, c->stream);
}

static CUresult clone_graph(struct calls *c)
{
    CUgraph clone;
    return CU(cuGraphClone, &clone, c->graph);
}

static CUresult instantiate(struct calls *c)
{
    return new_exec(&c->exec, c->graph);
}

/* ------------------------------------------------------------------ queries of another thread */

struct query {
    CUresult (*call)(struct calls *);
    struct calls *calls;
    CUresult result;
};

static void *query_main(void *arg)
{
    struct query *q = arg;

    q->result = CU(cuCtxSetCurrent, driver.context);
    if (q->result == CUDA_SUCCESS)
        q->result = q->call(q->calls);
    return NULL;
}

void ask_capture_queries(void)
{
    static const struct {
        const char *name;
        CUresult (*call)(struct calls *);
    } queries[] = {
        { "cuMemGetAddressRange", address_range }, { "cuStreamIsCapturing", is_capturing },
        { "cuFuncGetParamInfo", parameter_info },  { "cuFuncGetName", function_name },
        { "cuLaunchKernel", launch_other },
    };
    struct calls c;
    CUstream stream;
    CUgraph graph;
    pthread_t thread;
    char what[96];

    TRY(device_memory(&c.memory, 4096));
    TRY(new_stream(&c.stream));
    TRY(kernel(&c.function, "poke"));
    for (size_t i = 0; i < LENGTH(queries); i++) {
        struct query q = { queries[i].call, &c, CUDA_ERROR_UNKNOWN };
        TRY(begin(&stream));
        if (pthread_create(&thread, NULL, query_main, &q) || pthread_join(thread, NULL))
            return;
        snprintf(what, sizeof what, "%s in another thread", queries[i].name);
        result(what, q.result);
        snprintf(what, sizeof what, "%s in another thread leaves the capture active",
                 queries[i].name);
        holds(what, q.result == CUDA_SUCCESS && capture_is_active(stream));
        CU(cuStreamEndCapture, stream, &graph);
    }
}

void ask_capture_calls(void)
{
    static const struct {
        const char *name;
        CUresult (*call)(struct calls *);
        bool ours; /* created by this process, and still there */
    } calls[] = {
        { "cuMemGetAddressRange", address_range, true },
        { "cuStreamIsCapturing of another stream", is_capturing, true },
        { "cuFuncGetParamInfo", parameter_info, true },
        { "cuFuncGetName", function_name, true },
        { "cuLaunchKernel on another stream", launch_other, true },
        { "cuGraphExecKernelNodeSetParams", set_parameters, true },
        { "cuGraphNodeSetEnabled", switch_node, true },
        { "cuGraphLaunch on another stream", launch_graph, false },
        { "cuGraphClone of another graph", clone_graph, false },
        { "instantiating another graph", instantiate, false },
    };
    struct calls c;
    CUstream stream;
    uint32_t value = 1;
    void *params[] = { &c.memory, &value };
    char what[96];

    TRY(device_memory(&c.memory, 4096));
    TRY(new_stream(&c.stream));
    TRY(kernel(&c.function, "poke"));
    TRY(CU(cuGraphCreate, &c.graph, 0));
    TRY(add_kernel(c.graph, &c.node, NULL, c.function, params));
    TRY(new_exec(&c.exec, c.graph));
    for (size_t i = 0; i < LENGTH(calls); i++) {
        TRY(begin(&stream));
        CUresult r = calls[i].call(&c);
        snprintf(what, sizeof what, "%s, not relaxed", calls[i].name);
        result(what, r);
        snprintf(what, sizeof what, "%s leaves the capture active", calls[i].name);
        bool active = r == CUDA_SUCCESS && capture_is_active(stream);
        if (calls[i].ours)
            holds(what, active);
        else
            says(what, active ? "yes" : "no");
        CUgraph graph;
        CU(cuStreamEndCapture, stream, &graph);
    }
}

/* What the library does when it creates a capture context, in the capturing thread. */
static void own_thread(const char *how, unsigned stream_flags)
{
    static unsigned char memory[1 << 16] __attribute__((aligned(4096)));
    CUfunction empty;
    CUstream stream, ours;
    CUgraph graph;
    CUmodule module;
    CUdeviceptr p;
    size_t free_bytes, total;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    char what[96];

    TRY(kernel(&empty, "empty"));
    TRY(CU(cuStreamCreate, &stream, stream_flags));
    TRY(CU(cuStreamBeginCapture_v2, stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    TRY(launch(empty, 1, 1, stream, NULL));
    TRY(CU(cuThreadExchangeStreamCaptureMode, &mode));
    TRY(CU(cuMemGetInfo_v2, &free_bytes, &total));
    TRY(CU(cuModuleLoadData, &module, kernels_ptx));
    TRY(new_stream(&ours));
    TRY(CU(cuMemHostRegister_v2, memory, sizeof memory, CU_MEMHOSTREGISTER_DEVICEMAP));
    TRY(CU(cuMemAlloc_v2, &p, 4096));
    snprintf(what, sizeof what,
             "%s: memory, a module, a stream and a registration leave the capture active", how);
    holds(what, capture_is_active(stream));
    TRY(CU(cuMemsetD8Async, p, 0, 4096, ours));
    TRY(CU(cuStreamSynchronize, ours));
    snprintf(what, sizeof what, "%s: so does work on a stream of our own, waited for", how);
    holds(what, capture_is_active(stream));
    snprintf(what, sizeof what, "%s: cuMemsetD8, on the NULL stream", how);
    result(what, CU(cuMemsetD8_v2, p, 0, 4096));
    snprintf(what, sizeof what, "%s: the capture is then", how);
    says(what, "%s", capture_status_text(stream));
    TRY(CU(cuThreadExchangeStreamCaptureMode, &mode));
    snprintf(what, sizeof what, "%s: ending the capture", how);
    result(what, CU(cuStreamEndCapture, stream, &graph));
    TRY(CU(cuMemHostUnregister, memory));
}

void ask_capture_own_thread(void)
{
    own_thread("non-blocking stream", CU_STREAM_NON_BLOCKING);
    own_thread("blocking stream", CU_STREAM_DEFAULT);
}
