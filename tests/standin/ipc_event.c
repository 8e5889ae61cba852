/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ipc_event.c - events that several processes record and wait for
 *
 * Such an event is a page of its own: how often it has been recorded, by whomever, and how far that work
 * has got. Whoever waits for work of another process looks again and again, on a worker.
 */
#include "memory.h"
#include "impl.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define EVENT_MAGIC 0x5d31697063000002ull

struct event_page {
    _Atomic uint64_t recorded, done;
};

struct event_shared {
    atomic_int refs; /* of the event, and of work that is queued */
    int fd;
    struct event_page *page;
    uint64_t mine; /* the number of the last record that this process made */
};

struct ipc_event {
    uint64_t magic;
    int32_t pid, fd;
};

static struct event_shared *shared_new(int fd)
{
    struct event_shared *shared = calloc(1, sizeof(*shared));
    void *page = fd < 0 ? MAP_FAILED : mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (!shared || page == MAP_FAILED) {
        free(shared);
        if (fd >= 0)
            close(fd);
        return NULL;
    }
    shared->refs = 1;
    shared->fd = fd;
    shared->page = page;
    return shared;
}

struct event_shared *event_shared_new(void)
{
    int fd = memfd_create("standin-event:0", MFD_CLOEXEC);

    if (fd >= 0 && ftruncate(fd, PAGE) != 0) {
        close(fd);
        fd = -1;
    }
    return shared_new(fd);
}

struct event_shared *event_shared_ref(struct event_shared *shared)
{
    atomic_fetch_add(&shared->refs, 1);
    return shared;
}

void event_shared_unref(struct event_shared *shared)
{
    if (!shared || atomic_fetch_sub(&shared->refs, 1) > 1)
        return;
    munmap(shared->page, PAGE);
    close(shared->fd);
    free(shared);
}

/* ---- what happens to it ---- */

struct recorded {
    struct event_shared *shared;
    uint64_t number;
};

static void reached(struct event_page *page, uint64_t number)
{
    uint64_t done = atomic_load(&page->done);

    while (done < number && !atomic_compare_exchange_weak(&page->done, &done, number))
        ;
}

static void on_recorded(struct op *op, void *data)
{
    struct recorded *r = data;

    (void)op;
    reached(r->shared->page, r->number);
    event_shared_unref(r->shared);
    free(r);
}

void event_shared_record(struct event_shared *shared, struct op *op)
{
    uint64_t number = atomic_fetch_add(&shared->page->recorded, 1) + 1;
    struct recorded *r = op->done ? NULL : malloc(sizeof(*r));

    shared->mine = number;
    if (!r) {
        reached(shared->page, number);
        return;
    }
    *r = (struct recorded){ event_shared_ref(shared), number };
    op->on_done = on_recorded;
    op->on_done_data = r;
}

bool event_shared_done(const struct event_shared *shared, uint64_t *number)
{
    *number = atomic_load(&shared->page->recorded);
    return atomic_load(&shared->page->done) >= *number;
}

bool event_shared_is_mine(const struct event_shared *shared)
{
    return atomic_load(&shared->page->recorded) == shared->mine;
}

void event_shared_wait(const struct event_shared *shared, uint64_t number)
{
    while (atomic_load(&shared->page->done) < number && !atomic_load(&driver.ended))
        nanosleep(&(struct timespec){ .tv_nsec = 50000 }, NULL);
}

/* ---- handles ---- */

CUresult impl_cuIpcGetEventHandle(CUipcEventHandle *pHandle, CUevent handle)
{
    struct event *event = (struct event *)handle;
    struct ipc_event ipc = { .magic = EVENT_MAGIC, .pid = getpid() };
    DRIVER_LOCKED;

    if (!pHandle || !handle)
        return CUDA_ERROR_INVALID_VALUE;
    if (!object_is(event, OBJECT_EVENT) || !event->shared)
        return CUDA_ERROR_INVALID_HANDLE;
    ipc.fd = event->shared->fd;
    memset(pHandle, 0, sizeof(*pHandle));
    memcpy(pHandle, &ipc, sizeof(ipc));
    return CUDA_SUCCESS;
}

CUresult impl_cuIpcOpenEventHandle(CUevent *phEvent, CUipcEventHandle handle)
{
    struct event_shared *shared;
    struct ipc_event ipc;
    struct context *ctx;
    struct event *event;
    CUresult res;
    DRIVER_LOCKED;

    memcpy(&ipc, &handle, sizeof(ipc));
    if (!phEvent)
        return CUDA_ERROR_INVALID_VALUE;
    res = context_current(&ctx);
    if (res != CUDA_SUCCESS)
        return res;
    if (ipc.magic != EVENT_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    if (ipc.pid == getpid())
        return CUDA_ERROR_INVALID_CONTEXT;
    shared = shared_new(ipc_open(ipc.pid, ipc.fd));
    if (!shared)
        return CUDA_ERROR_INVALID_HANDLE;
    event = event_new(ctx, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS, shared);
    if (!event)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *phEvent = (CUevent)event;
    return CUDA_SUCCESS;
}
