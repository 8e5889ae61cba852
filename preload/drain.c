/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way out of the ring: one drain thread per arena copies published records to pinned staging
 * memory in batches, frees their ring space, and hands the batches to an encoder thread, which
 * appends each as one chunk. Batches keep their order from ring to disk.
 */
#include "core/atomic.h"
#include "core/clock.h"
#include "core/log.h"
#include "preload/arena.h"
#include "preload/hooks.h"
#include "preload/process.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define N_BATCHES     3
#define MAX_RECORDS   1024u /* a batch */
#define MAX_STAGING   (4u << 20)
#define MIN_STAGING   (64u << 10)
#define STACK_BYTES   (512u << 10)
#define POLL_BUSY_NS  50000u    /* records are in flight */
#define POLL_IDLE_NS  1000000u  /* nothing is */
#define BATCH_NS      20000000u /* how long records may gather: larger chunks shrink better */
#define PRESSED_SHARE 8         /* of the ring, from which on nothing is waited for */
#define HEALTH_NS     20000000u /* how often a ring that does not move asks for a sticky error */

struct batch {
    unsigned char *mem; /* a part of the staging mapping */
    unsigned char *big; /* a record that is larger than that, NULL: none; heap */
    size_t used;
    uint64_t end_slot; /* all slots before it are settled with this batch */
    uint32_t n;
    struct run_record records[MAX_RECORDS];
};

struct staging {
    unsigned char *map;
    size_t n_map;
    size_t batch_bytes;
    pthread_mutex_t lock; /* the queues; never held across a driver call */
    pthread_cond_t moved;
    struct batch *idle[N_BATCHES], *full[N_BATCHES]; /* full: oldest first */
    int n_idle, n_full;
    bool no_more; /* the drain has ended */
    struct batch batches[N_BATCHES];
};

static void sleep_ns(long ns)
{
    struct timespec pause = { .tv_nsec = ns };
    nanosleep(&pause, NULL);
}

/* ------------------------------------------------------------------------- queues */

static struct batch *take_idle(struct staging *s)
{
    pthread_mutex_lock(&s->lock);
    while (!s->n_idle)
        pthread_cond_wait(&s->moved, &s->lock);
    struct batch *b = s->idle[--s->n_idle];
    pthread_mutex_unlock(&s->lock);
    b->n = 0;
    b->used = 0;
    return b;
}

static void give_idle(struct staging *s, struct batch *b)
{
    free(b->big);
    b->big = NULL;
    pthread_mutex_lock(&s->lock);
    s->idle[s->n_idle++] = b;
    pthread_cond_broadcast(&s->moved);
    pthread_mutex_unlock(&s->lock);
}

static void give_full(struct staging *s, struct batch *b)
{
    pthread_mutex_lock(&s->lock);
    s->full[s->n_full++] = b;
    pthread_cond_broadcast(&s->moved);
    pthread_mutex_unlock(&s->lock);
}

/* NULL: the drain has ended and all is written */
static struct batch *take_full(struct staging *s)
{
    struct batch *b = NULL;
    pthread_mutex_lock(&s->lock);
    while (!s->n_full && !s->no_more)
        pthread_cond_wait(&s->moved, &s->lock);
    if (s->n_full) {
        b = s->full[0];
        memmove(s->full, s->full + 1, (size_t)--s->n_full * sizeof s->full[0]);
    }
    pthread_mutex_unlock(&s->lock);
    return b;
}

/* ------------------------------------------------------------------------- encoder */

static void settle(const struct batch *b, int written)
{
    for (uint32_t i = 0; i < b->n; i++) {
        const struct run_record *r = &b->records[i];
        struct dmi_site_counters *c = process_site(r->site);
        if (!c)
            continue;
        if (written == 0)
            process_count(&c->captured, 1, 1, r->dims[0], r->n_bytes);
        else
            process_drop(r->site, DMI_DROP_WRITE_FAILED, r->dims[0], r->n_bytes);
    }
}

static void *encoder_main(void *arg)
{
    struct arena *a = arg;
    struct batch *b;
    int told = 0;
    while ((b = take_full(a->staging))) {
        int r = b->n ? run_append(process.run, b->records, b->n) : 0;
        if (r && r != told) {
            log_line("records are dropped, the segment cannot be written: %s", strerror(-r));
            run_problem(process.run, NULL, "write_failed", strerror(-r));
            told = r;
        }
        settle(b, r);
        atomic_store_release(&a->settled, b->end_slot); /* to drain_wait() */
        give_idle(a->staging, b);
    }
    return NULL;
}

/* ------------------------------------------------------------------------- drain */

static void describe(const struct arena *a, uint64_t index, struct run_record *r)
{
    const struct ring_slot *slot = ring_slot(&a->ring, index);
    const struct arena_pending *p = &a->pending[index & (a->ring.n_slots - 1)];
    *r = (struct run_record){
        .site = slot->site,
        .layer = p->layer,
        .occurrence = p->occurrence,
        .dtype = p->dtype,
        .launch = slot->seq,
        .forward = p->forward,
        .step = p->step,
        .time_ns = p->time_ns,
        .device = (uint32_t)a->device,
        .n_dims = p->n_dims,
        .n_bytes = slot->n_bytes,
    };
    memcpy(r->dims, p->dims, sizeof r->dims);
}

static void drop_slot(const struct arena *a, uint64_t index, enum dmi_drop reason)
{
    const struct ring_slot *slot = ring_slot(&a->ring, index);
    if (slot->site == DMI_SITE_CLOSE)
        return; /* the end of a launch is no record */
    process_drop(slot->site, reason, a->pending[index & (a->ring.n_slots - 1)].dims[0],
                 slot->n_bytes);
}

/* One extent of the payload ring that goes to the staging memory in one copy. */
struct extent {
    uint64_t from, n; /* bytes */
    unsigned char *to;
};

static CUresult copy_extent(struct arena *a, struct extent *e)
{
    CUresult r = CUDA_SUCCESS;
    if (e->n)
        r = driver_table.cuMemcpyDtoHAsync_v2(e->to, a->payload + e->from, e->n, a->stream);
    e->n = 0;
    return r;
}

static CUresult copy_big(struct arena *a, struct batch *b, uint64_t index)
{
    const struct ring_slot *slot = ring_slot(&a->ring, index);
    b->big = malloc(slot->n_bytes);
    if (!b->big) {
        drop_slot(a, index, DMI_DROP_NO_MEMORY);
        return CUDA_SUCCESS;
    }
    describe(a, index, &b->records[0]);
    b->records[0].data = b->big;
    b->n = 1;
    for (uint64_t at = 0; at < slot->n_bytes; at += a->staging->batch_bytes) {
        uint64_t n = slot->n_bytes - at;
        if (n > a->staging->batch_bytes)
            n = a->staging->batch_bytes;
        struct extent e = { .from = slot->payload + at, .n = n, .to = b->mem };
        CUresult r = copy_extent(a, &e);
        if (r == CUDA_SUCCESS)
            r = driver_table.cuStreamSynchronize(a->stream);
        if (r != CUDA_SUCCESS)
            return r;
        memcpy(b->big + at, b->mem, n);
    }
    return CUDA_SUCCESS;
}

/*
 * Fills @b with what is published, in order, and waits for its bytes. b->end_slot tells how far it
 * got; records of slots up to there are in the batch, or were void, or are counted drops.
 */
static CUresult collect(struct arena *a, struct batch *b)
{
    struct extent e = { 0 };
    CUresult r = CUDA_SUCCESS;
    uint64_t index = a->ring.tail_slot;
    enum ring_event event;

    while (r == CUDA_SUCCESS && b->n < MAX_RECORDS &&
           (event = ring_poll(&a->ring, index)) >= RING_READY) {
        const struct ring_slot *slot = ring_slot(&a->ring, index);
        uint64_t padded = (slot->n_bytes + RING_ALIGN - 1) & ~(uint64_t)(RING_ALIGN - 1);
        if (event == RING_MISMATCH) {
            drop_slot(a, index, DMI_DROP_MISMATCH);
        } else if (event == RING_NOT_RUN) {
            drop_slot(a, index, DMI_DROP_NOT_RUN);
        } else if (event == RING_READY && padded > a->staging->batch_bytes) {
            if (b->n)
                break; /* alone in the next batch */
            r = copy_big(a, b, index++);
            break;
        } else if (event == RING_READY) {
            if (padded > a->staging->batch_bytes - b->used)
                break;
            if (!e.n || slot->payload != e.from + e.n) {
                r = copy_extent(a, &e);
                e = (struct extent){ .from = slot->payload, .to = b->mem + b->used };
            }
            describe(a, index, &b->records[b->n]);
            b->records[b->n++].data = b->mem + b->used;
            b->used += padded;
            e.n += padded;
        }
        index++;
    }
    b->end_slot = index;
    if (r == CUDA_SUCCESS)
        r = copy_extent(a, &e);
    if (r == CUDA_SUCCESS && b->used)
        r = driver_table.cuStreamSynchronize(a->stream);
    return r;
}

/* The context is beyond repair: its records never come. */
static void drop_all(struct arena *a, struct batch *b, enum dmi_drop reason)
{
    pthread_mutex_lock(&a->lock); /* whoever reserves has finished writing down what */
    uint64_t head = atomic_load_acquire(&a->ring.head_slot);
    pthread_mutex_unlock(&a->lock);
    for (uint64_t i = b->end_slot; i < head; i++)
        /* its launch may be refused right now: either we count its record, or its thread takes it back */
        if (ring_give_up(&a->ring, i))
            drop_slot(a, i, reason);
    b->end_slot = head;
}

static void fail(struct arena *a, struct batch *b, CUresult r)
{
    if (!a->broken)
        log_line("device %d: error %d, its records from here on are dropped", a->device, (int)r);
    atomic_store_release(&a->broken, (int)r); /* to reserve() in launch.c */
    for (uint32_t i = 0; i < b->n; i++)
        process_drop(b->records[i].site, DMI_DROP_DEVICE_ERROR, b->records[i].dims[0],
                     b->records[i].n_bytes);
    b->n = 0;
    drop_all(a, b, DMI_DROP_DEVICE_ERROR);
}

/* Few records in a roomy ring, and the last batch is not long ago: more may join them. */
static bool may_gather(const struct arena *a, uint64_t last_batch_ns, uint64_t now)
{
    const struct ring *ring = &a->ring;
    return now - last_batch_ns < BATCH_NS && ring_in_flight(ring) < ring->n_slots / PRESSED_SHARE &&
           ring_bytes_in_flight(ring) < ring->n_bytes / PRESSED_SHARE &&
           ring_bytes_in_flight(ring) < a->staging->batch_bytes;
}

static void *drain_main(void *arg)
{
    struct arena *a = arg;
    struct staging *s = a->staging;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUresult r = driver_table.cuCtxSetCurrent(a->context);
    if (driver_table.cuThreadExchangeStreamCaptureMode)
        driver_table.cuThreadExchangeStreamCaptureMode(&mode);

    uint64_t healthy_ns = clock_mono_ns(), batch_ns = 0;
    for (;;) {
        uint64_t stop_ns = atomic_load_acquire(&a->stop_ns); /* of drain_stop() */
        if (!stop_ns && r == CUDA_SUCCESS && may_gather(a, batch_ns, clock_mono_ns())) {
            sleep_ns(ring_in_flight(&a->ring) ? POLL_BUSY_NS : POLL_IDLE_NS);
            continue;
        }
        struct batch *b = take_idle(s);
        b->end_slot = a->ring.tail_slot;
        if (r == CUDA_SUCCESS)
            r = collect(a, b);
        uint64_t now = clock_mono_ns();
        bool stuck = b->end_slot == a->ring.tail_slot && ring_in_flight(&a->ring);
        if (stuck && r == CUDA_SUCCESS && now - healthy_ns > HEALTH_NS) {
            /* our own stream is idle: this returns at once, with the context's sticky error if any */
            r = driver_table.cuStreamSynchronize(a->stream);
            healthy_ns = now;
        }
        if (r != CUDA_SUCCESS)
            fail(a, b, r);
        else if (stuck && stop_ns && now > stop_ns)
            drop_all(a, b, a->stop_reason);
        if (b->end_slot != a->ring.tail_slot) {
            ring_release(&a->ring, b->end_slot);
            give_full(s, b);
            healthy_ns = batch_ns = now;
            continue;
        }
        give_idle(s, b);
        if (!ring_in_flight(&a->ring) && stop_ns)
            break;
        sleep_ns(ring_in_flight(&a->ring) ? POLL_BUSY_NS : POLL_IDLE_NS);
    }
    pthread_mutex_lock(&s->lock);
    s->no_more = true;
    pthread_cond_broadcast(&s->moved);
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ------------------------------------------------------------------------- start and stop */

static struct staging *staging_new(uint64_t ring_bytes)
{
    struct staging *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    uint64_t bytes = ring_bytes / 4;
    s->batch_bytes = bytes > MAX_STAGING ? MAX_STAGING : bytes < MIN_STAGING ? MIN_STAGING : bytes;
    s->batch_bytes = (s->batch_bytes + 4095) & ~(size_t)4095;
    s->n_map = N_BATCHES * s->batch_bytes;
    s->map = mmap(NULL, s->n_map, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (s->map == MAP_FAILED) {
        free(s);
        return NULL;
    }
    madvise(s->map, s->n_map, MADV_DONTFORK);
    /* only faster copies: a driver that refuses serves pageable memory as well */
    driver_table.cuMemHostRegister_v2(s->map, s->n_map, 0);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->moved, NULL);
    for (int i = 0; i < N_BATCHES; i++)
        s->batches[i].mem = s->map + (size_t)i * s->batch_bytes;
    return s;
}

void drain_free(struct arena *a)
{
    if (!a->staging)
        return;
    munmap(a->staging->map, a->staging->n_map);
    free(a->staging);
    a->staging = NULL;
}

static int start_thread(pthread_t *thread, void *(*fn)(void *), void *arg, const char *name)
{
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    /* the host's signals are handled by the host's threads */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int r = pthread_create(thread, &attr, fn, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    if (!r)
        pthread_setname_np(*thread, name);
    return -r;
}

int drain_start(struct arena *a)
{
    if (!a->staging)
        a->staging = staging_new(a->ring.n_bytes);
    struct staging *s = a->staging;
    if (!s)
        return -ENOMEM;
    s->no_more = false;
    s->n_full = 0;
    s->n_idle = N_BATCHES;
    for (int i = 0; i < N_BATCHES; i++)
        s->idle[i] = &s->batches[i];
    atomic_store_release(&a->stop_ns, (uint64_t)0); /* to drain_main() */

    int r = start_thread(&a->encoder, encoder_main, a, "dmi-encode");
    if (r)
        return r;
    a->encoder_runs = true;
    r = start_thread(&a->drain, drain_main, a, "dmi-drain");
    if (r) {
        pthread_mutex_lock(&s->lock);
        s->no_more = true;
        pthread_cond_broadcast(&s->moved);
        pthread_mutex_unlock(&s->lock);
        pthread_join(a->encoder, NULL);
        a->encoder_runs = false;
        return r;
    }
    a->drain_runs = true;
    return 0;
}

/* Return: true if the thread has ended, or never ran. */
static bool join(pthread_t thread, bool *runs, uint64_t end_mono_ns)
{
    if (*runs) {
        struct timespec at = { .tv_sec = (time_t)(end_mono_ns / 1000000000u),
                               .tv_nsec = (long)(end_mono_ns % 1000000000u) };
        if (!pthread_clockjoin_np(thread, NULL, CLOCK_MONOTONIC, &at))
            *runs = false;
    }
    return !*runs;
}

/* After the deadline the drain only counts what is left: that takes no time worth bounding twice. */
#define GRACE_NS 500000000u

bool drain_stop(struct arena *a, uint64_t timeout_ns, enum dmi_drop reason)
{
    uint64_t end = clock_mono_ns() + timeout_ns;
    a->stop_reason = reason;
    atomic_store_release(&a->stop_ns, end); /* to drain_main() */
    bool drain_ended = join(a->drain, &a->drain_runs, end + GRACE_NS);
    return drain_ended && join(a->encoder, &a->encoder_runs, end + 2 * GRACE_NS);
}

bool drain_wait(struct arena *a, uint64_t slot, uint64_t timeout_ns)
{
    uint64_t end = clock_mono_ns() + timeout_ns;
    while (atomic_load_acquire(&a->settled) < slot) { /* of encoder_main() */
        if (clock_mono_ns() > end)
            return false;
        sleep_ns(POLL_BUSY_NS);
    }
    return true;
}
