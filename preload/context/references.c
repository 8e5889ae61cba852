/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/context/references.h"

#include "core/locked.h"
#include "preload/base/handles.h"

#include <pthread.h>
#include <stdint.h>

static uint32_t retained[REFERENCES_DEVICES];  /* references that are known */
static struct handles attached = HANDLES_INIT; /* the number of attachments, as a pointer */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Only once the driver has returned: a release beside it may come before it. */
void references_retained(CUdevice device)
{
    pthread_mutex_lock(&lock);
    if (references_follow(device))
        retained[device]++;
    pthread_mutex_unlock(&lock);
}

/* Before the driver's call: of two that come at once, one is the last. */
struct context_reference references_release(CUdevice device)
{
    struct context_reference r = { .device = device, .last = true };
    pthread_mutex_lock(&lock);
    if (references_follow(device)) {
        r.counted = retained[device];
        retained[device] -= r.counted;
        r.last = !retained[device];
    }
    pthread_mutex_unlock(&lock);
    return r;
}

/* ------------------------------------------------------------------------- attachments */

/* Under the lock. */
static uintptr_t attachments(CUcontext handle)
{
    return (uintptr_t)handles_find(&attached, handle);
}

static void add(CUcontext handle, int by)
{
    uintptr_t n = attachments(handle) + (uintptr_t)by;
    handles_set(&attached, handle, (void *)n); /* without memory each detach may be the last */
}

void references_attached(CUcontext handle)
{
    UNDER(&lock, add(handle, 1));
}

struct context_reference references_detach(CUcontext handle)
{
    struct context_reference r = { .device = -1, .handle = handle };
    pthread_mutex_lock(&lock);
    r.counted = handle && attachments(handle);
    if (r.counted)
        add(handle, -1);
    r.last = !r.counted; /* the creator's */
    pthread_mutex_unlock(&lock);
    return r;
}

void references_ended(CUcontext handle)
{
    pthread_mutex_lock(&lock);
    if (handle && attachments(handle))
        handles_set(&attached, handle, NULL);
    pthread_mutex_unlock(&lock);
}

void references_kept(const struct context_reference *r)
{
    pthread_mutex_lock(&lock);
    if (r->counted && r->handle)
        add(r->handle, 1);
    else if (r->counted)
        retained[r->device]++;
    pthread_mutex_unlock(&lock);
}

void references_reset(void)
{
    struct handles fresh = HANDLES_INIT;
    pthread_mutex_t unlocked = PTHREAD_MUTEX_INITIALIZER;
    attached = fresh;
    lock = unlocked;
    for (int i = 0; i < REFERENCES_DEVICES; i++)
        retained[i] = 0;
}
