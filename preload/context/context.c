/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/context/context.h"

#include "core/atomic.h"
#include "preload/base/session.h"

#include <stdlib.h>
#include <string.h>

static struct context contexts[CONTEXT_MAX];

struct context *context_find(CUcontext handle)
{
    for (int i = 0; i < CONTEXT_MAX; i++) {
        /* acquires the release in begin() and start_relaxed() */
        int state = atomic_load_acquire(&contexts[i].state);
        if (state != CONTEXT_FREE && atomic_load_relaxed(&contexts[i].handle) == handle)
            return &contexts[i];
    }
    return NULL;
}

void context_each(void (*fn)(struct context *context, void *arg), void *arg)
{
    for (int i = 0; i < CONTEXT_MAX; i++) {
        int state = atomic_load_acquire(&contexts[i].state);
        if (state != CONTEXT_FREE && state != CONTEXT_STARTING)
            fn(&contexts[i], arg);
    }
}

void context_reset(void)
{
    memset(contexts, 0, sizeof contexts);
}

/* acquires fail() in drain.c, and context_stop() */
int context_refusal(const struct context *c)
{
    if (atomic_load_acquire(&c->broken))
        return DMI_DROP_DEVICE_ERROR;
    switch (atomic_load_acquire(&c->state)) {
    case CONTEXT_READY: return DROP_NONE;
    case CONTEXT_STARTING:
    case CONTEXT_COUNTING:
    case CONTEXT_FAILED: return DMI_DROP_UNSUPPORTED;
    default: return DMI_DROP_CONTEXT_GONE;
    }
}

uint32_t context_index(const struct context *c)
{
    return (uint32_t)(c - contexts);
}

bool context_has_kernel(const struct context *c, CUfunction function)
{
    const struct context_kernels *k = &c->kernels;
    bool ours = function == k->open || function == k->close;
    for (uint32_t i = 0; i < CONTEXT_KERNELS && !ours; i++)
        ours = function == k->actions[i];
    return ours;
}

/* Under the lock. Return: false without memory. */
static bool begin(struct context *c, CUcontext handle)
{
    pthread_mutex_t unlocked = PTHREAD_MUTEX_INITIALIZER;
    struct context_site *sites = calloc(session.spec->n_sites + 1, sizeof *sites);
    if (!sites)
        return false;
    memset(c, 0, sizeof *c);
    c->lock = unlocked;
    c->forward = (struct context_forward){ .kind = -1 };
    c->sites = sites;
    c->handle = handle;
    atomic_store_release(&c->state, CONTEXT_COUNTING); /* to context_find() */
    return true;
}

struct context *context_claim(CUcontext handle)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    struct context *c = context_find(handle);
    if (c)
        return c;
    pthread_mutex_lock(&lock);
    c = context_find(handle);
    for (int i = 0; !c && i < CONTEXT_MAX; i++)
        if (contexts[i].state == CONTEXT_FREE) {
            if (!begin(&contexts[i], handle))
                break;
            c = &contexts[i];
        }
    pthread_mutex_unlock(&lock);
    return c;
}
