/* SPDX-License-Identifier: Apache-2.0 */
/*
 * work.c - pieces of work: created on the caller's thread, executed on a worker
 */
#include "conditional.h"

#include <sched.h>
#include <stdlib.h>
#include <time.h>

struct work *work_new(enum work_kind kind, struct context *ctx)
{
    struct work *work = calloc(1, sizeof(*work));

    if (work) {
        atomic_init(&work->refs, 1);
        work->kind = kind;
        work->ctx = ctx;
    }
    return work;
}

struct work *work_ref(struct work *work)
{
    if (work)
        atomic_fetch_add(&work->refs, 1);
    return work;
}

/* Lock held. */
void work_unref(struct work *work)
{
    if (!work || atomic_fetch_sub(&work->refs, 1) > 1)
        return;
    if (work->kind == WORK_KERNEL) {
        free(work->kernel.params);
        free(work->kernel.values);
    } else if (work->kind == WORK_COPY) {
        free(work->copy.staged);
    } else if (work->kind == WORK_ALLOC) {
        graph_memory_unref(work->alloc.address);
    } else if (work->kind == WORK_EVENT_SHARED) {
        event_shared_unref(work->shared.event);
    }
    free(work);
}

static void value_write(void *data)
{
    struct work *work = data;
    void *at = memory_host(work->value.address);

    if (work->value.wide)
        __atomic_store_n((uint64_t *)at, work->value.value, __ATOMIC_RELEASE);
    else
        __atomic_store_n((uint32_t *)at, (uint32_t)work->value.value, __ATOMIC_RELEASE);
}

static void value_wait(void *data)
{
    struct work *work = data;
    void *at = memory_host(work->value.address);
    uint64_t want = work->value.value;
    bool met = false;

    while (!met && !atomic_load(&driver.ended)) {
        uint64_t v = work->value.wide ? __atomic_load_n((uint64_t *)at, __ATOMIC_ACQUIRE)
                                      : __atomic_load_n((uint32_t *)at, __ATOMIC_ACQUIRE);

        switch (work->value.flags & 3) {
        case CU_STREAM_WAIT_VALUE_GEQ:
            met = work->value.wide ? (int64_t)(v - want) >= 0
                                   : (int32_t)((uint32_t)v - (uint32_t)want) >= 0;
            break;
        case CU_STREAM_WAIT_VALUE_EQ: met = v == want; break;
        case CU_STREAM_WAIT_VALUE_AND: met = (v & want) != 0; break;
        default: met = (~(v | want) & (work->value.wide ? ~0ull : 0xffffffffull)) != 0; break;
        }
        if (!met)
            nanosleep(&(struct timespec){ .tv_nsec = 20000 }, NULL);
    }
}

CUresult work_execute(struct work *work, struct op *op)
{
    switch (work->kind) {
    case WORK_KERNEL: return kernel_run(&work->kernel, op);
    case WORK_COPY: return copy_execute(&work->copy, op);
    case WORK_SET: return set_execute(&work->set);
    case WORK_HOST:
        tls.in_callback = true;
        work->host.fn(work->host.data);
        tls.in_callback = false;
        return CUDA_SUCCESS;
    case WORK_CALLBACK:
        print_flush(op->ctx);
        tls.in_callback = true;
        work->callback.fn(work->callback.stream, op->ctx->sticky, work->callback.data);
        tls.in_callback = false;
        return CUDA_SUCCESS;
    case WORK_FREE: pool_release(work->free.address, work->free.id); return CUDA_SUCCESS;
    case WORK_CONDITION: conditional_look(work->condition.run); return CUDA_SUCCESS;
    case WORK_EVENT_SHARED:
        event_shared_wait(work->shared.event, work->shared.number);
        return CUDA_SUCCESS;
    case WORK_ALLOC:
    case WORK_ALLOC_FREE: graph_memory_work(work); return CUDA_SUCCESS;
    case WORK_WRITE_VALUE:
        return guarded(value_write, work) ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
    case WORK_WAIT_VALUE:
        return guarded(value_wait, work) ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
    default: return CUDA_SUCCESS;
    }
}
