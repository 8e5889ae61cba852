/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/context/references.h"

#include "preload/base/handles.h"

#include <pthread.h>
#include <stdint.h>

#define MAX_DEVICES 64 /* of further ones each release may be the last */

static struct primary {
    CUcontext handle;
    uint32_t n; /* references that are known */
} primaries[MAX_DEVICES];
static struct handles attached = HANDLES_INIT; /* the number of attachments, as a pointer */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct primary *primary_of(CUdevice device)
{
    return device >= 0 && device < MAX_DEVICES ? &primaries[device] : NULL;
}

/* Only once the driver has returned: a release beside it may come before it. */
void references_retained(CUdevice device, CUcontext handle)
{
    struct primary *p = primary_of(device);
    if (!p)
        return;
    pthread_mutex_lock(&lock);
    p->handle = handle;
    p->n++;
    pthread_mutex_unlock(&lock);
}

/* Under the lock. Once it may be over the handle is not known: the next one may have another. */
static void note_last(struct reference *r, struct primary *p)
{
    r->primary = p->handle;
    if (r->last)
        p->handle = NULL;
}

/* Before the driver's call: of two that come at once, one is the last. */
struct reference references_release(CUdevice device)
{
    struct primary *p = primary_of(device);
    struct reference r = { .device = device, .last = true };
    if (!p)
        return r;
    pthread_mutex_lock(&lock);
    r.counted = p->n;
    p->n -= r.counted;
    r.last = !p->n;
    note_last(&r, p);
    pthread_mutex_unlock(&lock);
    return r;
}

struct reference references_of_all(CUdevice device)
{
    struct primary *p = primary_of(device);
    struct reference r = { .device = device, .last = true };
    if (!p)
        return r;
    pthread_mutex_lock(&lock);
    note_last(&r, p);
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
    pthread_mutex_lock(&lock);
    add(handle, 1);
    pthread_mutex_unlock(&lock);
}

struct reference references_detach(CUcontext handle)
{
    struct reference r = { .handle = handle };
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

void references_kept(const struct reference *r)
{
    struct primary *p = r->handle ? NULL : primary_of(r->device);
    pthread_mutex_lock(&lock);
    if (r->counted && p)
        p->n++;
    else if (r->counted && r->handle)
        add(r->handle, 1);
    pthread_mutex_unlock(&lock);
}

void references_reset(void)
{
    struct handles fresh = HANDLES_INIT;
    pthread_mutex_t unlocked = PTHREAD_MUTEX_INITIALIZER;
    attached = fresh;
    lock = unlocked;
    for (int i = 0; i < MAX_DEVICES; i++)
        primaries[i] = (struct primary){ 0 };
}
