/* SPDX-License-Identifier: Apache-2.0 */
/* Which calls return while a kernel runs, and which wait for it: in this thread, and in another while one waits. */
#include "facts.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* So long the kernel runs if nobody ends it: longer than a load of PTX takes by itself, or a context. */
#define LIMIT_NS      600000000u
#define LONG_LIMIT_NS 2000000000u
#define REGISTER_SIZE (1u << 20)

/* What the calls use; prepared before the kernel runs. */
struct subject {
    struct gate gate;
    CUstream gate_stream, stream, spare_stream;
    CUfunction poke, lazy;
    CUmodule module;
    CUlibrary library;
    CUdeviceptr p, spare, pool;
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec exec, spare_exec;
    CUevent event;
    void *mapped, *registered;
    unsigned char pageable[64];
};

static CUresult prepare(struct subject *s)
{
    uint32_t value = 1;
    void *params[] = { &s->p, &value };

    memset(s, 0, sizeof *s);
    PASS(gate_init(&s->gate));
    s->gate.limit_ns = LIMIT_NS;
    PASS(new_stream(&s->gate_stream));
    PASS(new_stream(&s->stream));
    PASS(new_stream(&s->spare_stream));
    PASS(device_memory(&s->p, 4096));
    PASS(device_memory(&s->spare, 4096));
    PASS(kernel(&s->poke, "poke"));
    PASS(kernel(&s->lazy, "lazy_0"));
    PASS(launch(s->poke, 1, 1, s->stream, params));
    PASS(CU(cuModuleLoadData, &s->module, kernels_ptx));
    PASS(CU(cuLibraryLoadData, &s->library, kernels_ptx, NULL, NULL, 0, NULL, NULL, 0));
    PASS(CU(cuGraphCreate, &s->graph, 0));
    PASS(add_kernel(s->graph, &s->node, NULL, s->poke, params));
    PASS(new_exec(&s->exec, s->graph));
    PASS(new_exec(&s->spare_exec, s->graph));
    PASS(CU(cuGraphLaunch, s->exec, s->stream));
    PASS(CU(cuEventCreate, &s->event, CU_EVENT_DISABLE_TIMING));
    s->mapped =
        mmap(NULL, 2 * REGISTER_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (s->mapped == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    s->registered = (char *)s->mapped + REGISTER_SIZE;
    PASS(CU(cuMemHostRegister_v2, s->registered, REGISTER_SIZE, CU_MEMHOSTREGISTER_DEVICEMAP));
    return CU(cuCtxSynchronize);
}

/* ------------------------------------------------------------------ the calls */

#define CALL(name, ...)                                                                            \
    static CUresult name(struct subject *s)                                                        \
    {                                                                                              \
        (void)s;                                                                                   \
        __VA_ARGS__                                                                                \
    }

CALL(launch_other, {
    uint32_t value = 1;
    void *params[] = { &s->p, &value };
    return launch(s->poke, 1, 1, s->stream, params);
})
CALL(launch_first_use, return launch(s->lazy, 1, 1, s->stream, NULL);)
CALL(launch_graph, return CU(cuGraphLaunch, s->exec, s->stream);)
CALL(set_params, {
    uint32_t value = 2;
    void *params[] = { &s->p, &value };
    CUDA_KERNEL_NODE_PARAMS_v2 k = node_params(s->poke, 1, 1, params);
    return CU(cuGraphExecKernelNodeSetParams_v2, s->exec, s->node, &k);
})
CALL(set_enabled, return CU(cuGraphNodeSetEnabled, s->exec, s->node, 1);)
CALL(clone_graph, {
    CUgraph graph;
    return CU(cuGraphClone, &graph, s->graph);
})
CALL(instantiate, {
    CUgraphExec exec;
    return new_exec(&exec, s->graph);
})
CALL(upload, return CU(cuGraphUpload, s->exec, s->stream);)
CALL(destroy_exec, return CU(cuGraphExecDestroy, s->spare_exec);)
CALL(is_capturing, {
    CUstreamCaptureStatus status;
    return CU(cuStreamIsCapturing, s->stream, &status);
})
CALL(get_current, {
    CUcontext context;
    return CU(cuCtxGetCurrent, &context);
})
CALL(get_range, {
    CUdeviceptr base;
    size_t n;
    return CU(cuMemGetAddressRange_v2, &base, &n, s->p);
})
CALL(get_param_info, {
    size_t offset, size;
    return CU(cuFuncGetParamInfo, s->poke, 0, &offset, &size);
})
CALL(get_memory_info, {
    size_t free_bytes, total;
    return CU(cuMemGetInfo_v2, &free_bytes, &total);
})
CALL(record_event, return CU(cuEventRecord, s->event, s->stream);)
CALL(copy_registered, return CU(cuMemcpyDtoHAsync_v2, s->registered, s->p, 64, s->stream);)
CALL(copy_pageable, return CU(cuMemcpyDtoHAsync_v2, s->pageable, s->p, 64, s->stream);)
CALL(load_module, {
    CUmodule module;
    return CU(cuModuleLoadData, &module, kernels_ptx);
})
CALL(load_library, {
    CUlibrary library;
    return CU(cuLibraryLoadData, &library, kernels_ptx, NULL, NULL, 0, NULL, NULL, 0);
})
CALL(get_function, {
    CUfunction function;
    return CU(cuModuleGetFunction, &function, s->module, "move");
})
CALL(get_kernel_function, {
    CUkernel kernel;
    CUfunction function;
    PASS(CU(cuLibraryGetKernel, &kernel, s->library, "move"));
    return CU(cuKernelGetFunction, &function, kernel);
})
CALL(unload_module, return CU(cuModuleUnload, s->module);)
CALL(unload_library, return CU(cuLibraryUnload, s->library);)
CALL(allocate, {
    CUdeviceptr p;
    return CU(cuMemAlloc_v2, &p, 64u << 20);
})
CALL(allocate_small, {
    CUdeviceptr p;
    return CU(cuMemAlloc_v2, &p, 512);
})
CALL(release, return CU(cuMemFree_v2, s->spare);)
CALL(allocate_pool, return CU(cuMemAllocAsync, &s->pool, 4096, s->stream);)
CALL(allocate_host, {
    void *host;
    return CU(cuMemHostAlloc, &host, REGISTER_SIZE, CU_MEMHOSTALLOC_DEVICEMAP);
})
CALL(register_host,
     return CU(cuMemHostRegister_v2, s->mapped, REGISTER_SIZE, CU_MEMHOSTREGISTER_DEVICEMAP);)
CALL(unregister_host, return CU(cuMemHostUnregister, s->registered);)
CALL(create_stream, {
    CUstream stream;
    return new_stream(&stream);
})
CALL(destroy_stream, return CU(cuStreamDestroy_v2, s->spare_stream);)
CALL(create_event, {
    CUevent event;
    return CU(cuEventCreate, &event, CU_EVENT_DISABLE_TIMING);
})
CALL(create_context, {
    CUcontext context;
    PASS(CU(cuCtxCreate_v2, &context, 0, driver.device));
    return CU(cuCtxSetCurrent, driver.context);
})

/* relied_on: the library makes it inside of a launch */
static const struct call {
    const char *name;
    CUresult (*make)(struct subject *s);
    bool relied_on;
} calls[] = {
    { "cuLaunchKernel on another stream", launch_other, true },
    { "cuLaunchKernel, the kernel's first use", launch_first_use, false },
    { "cuGraphLaunch on another stream", launch_graph, true },
    { "cuGraphExecKernelNodeSetParams", set_params, true },
    { "cuGraphNodeSetEnabled", set_enabled, true },
    { "cuStreamIsCapturing", is_capturing, true },
    { "cuCtxGetCurrent", get_current, true },
    { "cuMemGetAddressRange", get_range, true },
    { "cuFuncGetParamInfo", get_param_info, true },
    { "cuEventRecord", record_event, true },
    { "cuMemcpyDtoHAsync to registered memory", copy_registered, true },
    { "cuMemcpyDtoHAsync to pageable memory", copy_pageable, false },
    { "cuMemGetInfo", get_memory_info, false },
    { "cuGraphClone", clone_graph, false },
    { "cuGraphInstantiate", instantiate, false },
    { "cuGraphUpload", upload, false },
    { "cuGraphExecDestroy", destroy_exec, false },
    { "cuModuleLoadData", load_module, false },
    { "cuLibraryLoadData", load_library, false },
    { "cuModuleGetFunction", get_function, false },
    { "cuLibraryGetKernel and cuKernelGetFunction", get_kernel_function, false },
    { "cuModuleUnload", unload_module, false },
    { "cuLibraryUnload", unload_library, false },
    { "cuMemAlloc of 512 bytes", allocate_small, false },
    { "cuMemAlloc of 64 MiB", allocate, false },
    { "cuMemFree", release, false },
    { "cuMemAllocAsync on another stream", allocate_pool, false },
    { "cuMemHostAlloc", allocate_host, false },
    { "cuMemHostRegister", register_host, false },
    { "cuMemHostUnregister", unregister_host, false },
    { "cuStreamCreate", create_stream, false },
    { "cuStreamDestroy", destroy_stream, false },
    { "cuEventCreate", create_event, false },
    { "cuCtxCreate", create_context, false },
};

/* ------------------------------------------------------------------ while a kernel runs */

/* Return: false if the kernel did not begin. */
static CUresult close_gate(struct subject *s, bool *began)
{
    s->gate.words[0] = s->gate.words[1] = 0;
    PASS(gate_launch(&s->gate, s->gate_stream));
    *began = gate_wait_started(&s->gate);
    return CUDA_SUCCESS;
}

static CUresult open_gate(struct subject *s)
{
    gate_open(&s->gate);
    return CU(cuStreamSynchronize, s->gate_stream);
}

static void ask_call(const struct call *call, struct subject *s)
{
    bool began;

    s->gate.limit_ns = call->make == create_context ? LONG_LIMIT_NS : LIMIT_NS;
    TRY(close_gate(s, &began));
    CUresult r = call->make(s);
    const char *name = driver.last_call;
    bool waited = gate_expired(&s->gate);
    TRY(open_gate(s));
    TRY(CU(cuStreamSynchronize, s->stream));
    driver.last_call = name;
    if (r != CUDA_SUCCESS)
        result(call->name, r);
    else if (!began)
        says(call->name, "the kernel did not begin");
    else if (call->relied_on)
        holds(call->name, !waited);
    else
        says(call->name, waited ? "waits for the kernel" : "returns while it runs");
}

void ask_waits_for_kernel(void)
{
    static struct subject s;

    TRY(prepare(&s));
    for (size_t i = 0; i < LENGTH(calls); i++)
        ask_call(&calls[i], &s);
}

/* ------------------------------------------------------------------ while another thread waits */

static void *load(void *arg)
{
    CUmodule module;
    CUresult *r = arg;

    *r = driver.cuCtxSetCurrent(driver.context);
    if (*r == CUDA_SUCCESS)
        *r = driver.cuModuleLoadData(&module, kernels_ptx);
    return NULL;
}

static void ask_beside_load(const struct call *call, struct subject *s)
{
    CUresult of_load = CUDA_ERROR_UNKNOWN;
    pthread_t thread;
    bool began;

    TRY(close_gate(s, &began));
    if (pthread_create(&thread, NULL, load, &of_load))
        return;
    usleep(200000); /* the load is under way, and waits if it ever does */
    CUresult r = call->make(s);
    bool waited = gate_expired(&s->gate);
    gate_open(&s->gate);
    pthread_join(thread, NULL);
    TRY(of_load);
    TRY(CU(cuStreamSynchronize, s->gate_stream));
    TRY(CU(cuStreamSynchronize, s->stream));
    if (r != CUDA_SUCCESS)
        result(call->name, r);
    else
        says(call->name, waited ? "waits, too" : "returns");
}

void ask_others_wait(void)
{
    static struct subject s;

    TRY(prepare(&s));
    for (size_t i = 0; i < LENGTH(calls); i++)
        if (calls[i].relied_on)
            ask_beside_load(&calls[i], &s);
}
