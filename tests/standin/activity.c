/* SPDX-License-Identifier: Apache-2.0 */
/*
 * activity.c - what was executed, and when, for one observer (cupti/cupti.c)
 */
#include "activity.h"
#include "driver.h"
#include "graph.h"
#include "graph_exec.h"
#include "image.h"

#include <time.h>

#define EXPORTED __attribute__((visibility("default")))

static void (*_Atomic observer)(const struct activity *activity);

EXPORTED void standin_observe(void (*fn)(const struct activity *activity))
{
    atomic_store(&observer, fn);
}

bool activity_observed(void)
{
    return atomic_load(&observer) != NULL;
}

uint64_t activity_clock(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void tell_kernel(const struct kernel_work *kernel, struct activity *a)
{
    const struct kernel_info *info = kernel->function->info;

    a->kind = ACTIVITY_KERNEL;
    for (int i = 0; i < 3; i++) {
        a->grid[i] = kernel->grid[i];
        a->block[i] = kernel->block[i];
    }
    a->static_shared = (unsigned)info->static_shared;
    a->dynamic_shared = kernel->shared_bytes;
    a->registers = info->registers ? (unsigned)info->registers : 16;
    a->name = kernel->function->name;
}

static void tell_copy(const struct copy_work *copy, struct activity *a)
{
    bool from = memory_is_device(copy->src.address), to = memory_is_device(copy->dst.address);

    a->kind = ACTIVITY_COPY;
    a->bytes = (uint64_t)copy->width * copy->height * copy->depth;
    a->how = from && to ? 8 : from ? 2 : to ? 1 : 9;
}

void activity_tell(const struct op *op, uint64_t begin_ns, uint64_t end_ns)
{
    void (*fn)(const struct activity *activity) = atomic_load(&observer);
    struct activity a = { .correlation = (uint32_t)op->correlation,
                          .device = (uint32_t)op->ctx->device,
                          .context = (uint32_t)op->ctx->id,
                          .stream = (uint32_t)op->stream,
                          .graph = (uint32_t)op->exec,
                          .node = op->node,
                          .begin_ns = begin_ns,
                          .end_ns = end_ns };

    switch (op->work->kind) {
    case WORK_KERNEL: tell_kernel(&op->work->kernel, &a); break;
    case WORK_COPY: tell_copy(&op->work->copy, &a); break;
    case WORK_SET:
        a.kind = ACTIVITY_SET;
        a.bytes = (uint64_t)op->work->set.width * op->work->set.height * op->work->set.element;
        break;
    default: return;
    }
    if (fn)
        fn(&a);
}

EXPORTED uint32_t standin_stream_id(void *handle, int per_thread)
{
    struct stream *stream;
    int before = tls.per_thread;
    CUresult res;
    DRIVER_LOCKED;

    tls.per_thread = per_thread;
    res = stream_resolve(handle, &stream);
    tls.per_thread = before;
    return res == CUDA_SUCCESS ? (uint32_t)stream->id : 0;
}

EXPORTED uint32_t standin_context_id(void *handle)
{
    struct context *ctx;
    DRIVER_LOCKED;

    return context_resolve(handle, &ctx) == CUDA_SUCCESS ? (uint32_t)ctx->id : 0;
}

EXPORTED uint32_t standin_exec_id(void *handle)
{
    DRIVER_LOCKED;

    return object_is(handle, OBJECT_EXEC) ? (uint32_t)((struct graph_exec *)handle)->id : 0;
}

EXPORTED uint64_t standin_node_id(void *handle)
{
    DRIVER_LOCKED;

    return object_is(handle, OBJECT_NODE) ? ((struct graph_node *)handle)->uid : 0;
}
