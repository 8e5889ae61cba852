/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load.c - what loads code or maps memory holds a lock of the context, and waits for the context's work meanwhile
 *
 * As reported of drivers (cuModuleLoadData() while a kernel spins; other threads' calls then wait for the
 * lock): whoever loads or allocates inside of a launch can hang a program whose running kernel waits for
 * the launching thread. Work that is queued later is not waited for.
 */
#include "driver.h"

static pthread_cond_t load_free = PTHREAD_COND_INITIALIZER;

struct context *load_begin(struct context *ctx)
{
    uint64_t me = thread_id();

    if (!driver.config.load_waits)
        return ctx;
    while (object_live(ctx, OBJECT_CONTEXT) && ctx->loader && ctx->loader != me)
        pthread_cond_wait(&load_free, &driver.lock);
    if (!object_live(ctx, OBJECT_CONTEXT))
        return NULL;
    ctx->loader = me;
    if (ctx->n_loads++ == 0)
        context_drain(ctx);
    return ctx;
}

/* A context that ended while its lock was held has taken the lock with it. */
void load_end(struct context **held)
{
    struct context *ctx = *held;

    if (!driver.config.load_waits)
        return;
    if (object_live(ctx, OBJECT_CONTEXT) && --ctx->n_loads == 0)
        ctx->loader = 0;
    pthread_cond_broadcast(&load_free);
}

CUresult load_result(const struct context *ctx)
{
    return ctx ? ctx->sticky : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

/* "First use" is whatever asks for more than the function's name and module. */
CUresult function_load(struct function *function)
{
    if (!function->loaded) {
        LOADING(function->module->ctx);

        if (!loading_)
            return load_result(NULL);
        function->loaded = true;
    }
    return function->module->ctx->sticky;
}
