/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/context/drain.h"

#include "core/atomic.h"
#include "core/clock.h"
#include "core/log.h"
#include "preload/context/assembly.h"
#include "preload/context/edit_region.h"
#include "preload/context/gauge.h"
#include "preload/context/launch_records.h"
#include "preload/context/side_ops.h"
#include "preload/context/staging.h"
#include "preload/session/session.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define POLL_BUSY_NS  50000u    /* records are in flight */
#define POLL_IDLE_NS  1000000u  /* nothing is */
#define BATCH_NS      20000000u /* how long records may gather: larger chunks shrink better */
#define PRESSED_SHARE 8         /* of the ring, from which on nothing is waited for */
#define BACKLOG_SHARE 4         /* of the ring, from which on waiting for an encoder is a backlog */
#define HEALTH_NS     20000000u /* how often a ring that does not move asks for a sticky error */
#define NAMED_SITES   4u        /* of those with copies in flight, when the context breaks */

static void sleep_ns(long ns)
{
    struct timespec pause = { .tv_nsec = ns };
    nanosleep(&pause, NULL);
}

/* ------------------------------------------------------------------------- records */

/* A record as it lies in the ring: in a slot of its own, or among those that a launch's slot tells of. */
struct lying {
    uint32_t site;
    uint64_t seq, payload, n_bytes;
    struct record_note note;
};

static struct lying lies_alone(const struct context *c, uint64_t index)
{
    const struct ring_slot *slot = ring_slot(&c->ring, index);
    return (struct lying){ .site = slot->site,
                           .seq = slot->seq,
                           .payload = slot->payload,
                           .n_bytes = slot->n_bytes,
                           .note = *(const struct record_note *)ring_user(&c->ring, index) };
}

/* Number @i of those that the slot tells of. */
static struct lying lies_in_launch(const struct context *c, uint64_t index, uint32_t i)
{
    const struct ring_slot *slot = ring_slot(&c->ring, index);
    const struct launch_note *launch = launch_note(&c->ring, index);
    const struct launch_record *r = launch_record(launch, i);
    struct lying l = { .site = r->site,
                       .seq = slot->seq,
                       .payload = slot->payload + r->at,
                       .n_bytes = r->n_bytes,
                       .note = r->note };
    l.note.step = launch->step;
    l.note.time_ns = launch->time_ns;
    l.note.forward += launch->forward;
    return l;
}

/*
 * The list of kept rows, copied: its place may be another's once the slot is released. Records that follow one another
 * often have the same. Return: false without memory.
 */
static bool keep_list(const struct context *c, const struct record_note *note, struct batch *b,
                      struct run_record *r)
{
    if (note->kept == ROW_LISTS_NONE)
        return true;
    if (b->n_lists && b->last_at == note->kept && b->last_n == note->dims[0] &&
        b->last_step == note->step) {
        r->kept = b->lists[b->n_lists - 1];
        return true;
    }
    size_t n = note->dims[0] * sizeof(uint32_t);
    uint32_t *list = malloc(n);
    if (!list)
        return false;
    memcpy(list, c->row_lists.map + note->kept, n);
    r->kept = b->lists[b->n_lists++] = list;
    b->last_at = note->kept;
    b->last_n = note->dims[0];
    b->last_step = note->step;
    return true;
}

/* The record becomes the batch's next one. Return: false without memory. */
static bool describe(const struct context *c, const struct lying *l, struct batch *b)
{
    struct run_record *r = &b->records[b->n];
    const struct record_note *from = &l->note;
    *r = (struct run_record){ .site = l->site,
                              .dtype = from->dtype,
                              .launch = l->seq,
                              .step = from->step,
                              .device = (uint32_t)c->device,
                              .n_dims = from->n_dims,
                              .n_bytes = from->assembly ? from->assembly->n_bytes : l->n_bytes,
                              RECORD_NOTED(RECORD_TAKE) };
    memcpy(r->dims, from->dims, sizeof r->dims);
    return keep_list(c, from, b, r);
}

static void drop_record(const struct lying *l, enum dmi_drop reason)
{
    struct assembly *a = l->note.assembly;
    if (!a) {
        session_drop(l->site, reason, l->note.dims[0], l->n_bytes);
        return;
    }
    if (assembly_settle(a))
        session_drop(l->site, reason, l->note.dims[0], a->n_bytes);
    assembly_release(a);
}

/* All that the slot stands for; of a launch the records from number @from on. */
static void drop_slot(const struct context *c, uint64_t index, uint32_t from, enum dmi_drop reason)
{
    const struct ring_slot *slot = ring_slot(&c->ring, index);
    struct lying l;
    if (!ring_is_launch(slot)) {
        l = lies_alone(c, index);
        drop_record(&l, reason);
        return;
    }
    for (uint32_t i = from; i < slot->n_records; i++) {
        l = lies_in_launch(c, index, i);
        drop_record(&l, reason);
    }
    launch_records_release(launch_note(&c->ring, index)->records);
}

/* One extent of the payload ring that goes to the staging memory in one copy. */
struct ring_extent {
    uint64_t from, n; /* bytes */
    unsigned char *to;
};

static CUresult copy_extent(struct context *c, struct ring_extent *e)
{
    CUresult r = CUDA_SUCCESS;
    if (e->n)
        r = c->side->fetch(c, e->to, e->from, e->n);
    e->n = 0;
    return r;
}

/* The record's bytes to @to, by way of the batch's pinned memory. */
static CUresult copy_through(struct context *c, struct batch *b, const struct lying *l,
                             unsigned char *to)
{
    for (uint64_t at = 0; at < l->n_bytes; at += c->staging->batch_bytes) {
        uint64_t n = l->n_bytes - at;
        if (n > c->staging->batch_bytes)
            n = c->staging->batch_bytes;
        struct ring_extent e = { .from = l->payload + at, .n = n, .to = b->mem };
        CUresult r = copy_extent(c, &e);
        if (r == CUDA_SUCCESS)
            r = c->side->finish(c);
        if (r != CUDA_SUCCESS)
            return r;
        memcpy(to + at, b->mem, n);
    }
    return CUDA_SUCCESS;
}

/* The record in @data, taken over, is the batch's only one. */
static void take_big(struct context *c, struct batch *b, const struct lying *l, unsigned char *data)
{
    b->big = data;
    if (!describe(c, l, b)) {
        session_drop(l->site, DMI_DROP_NO_MEMORY, l->note.dims[0], b->records[0].n_bytes);
        return;
    }
    b->records[0].data = b->big;
    b->n = 1;
}

static CUresult copy_big(struct context *c, struct batch *b, const struct lying *l)
{
    unsigned char *data = malloc(l->n_bytes);
    if (!data) {
        drop_record(l, DMI_DROP_NO_MEMORY);
        return CUDA_SUCCESS;
    }
    take_big(c, b, l, data);
    return copy_through(c, b, l, data);
}

/* A piece joins its record, which is complete with the last one. */
static CUresult copy_piece(struct context *c, struct batch *b, const struct lying *l)
{
    struct assembly *a = l->note.assembly;
    bool wanted = !atomic_load_acquire(&a->settled); /* of assembly_settle() */
    CUresult r = wanted ? copy_through(c, b, l, a->data + l->note.offset) : CUDA_SUCCESS;
    if (r != CUDA_SUCCESS) {
        drop_record(l, DMI_DROP_DEVICE_ERROR);
        return r;
    }
    a->n_filled += l->n_bytes;
    if (a->n_filled == a->n_bytes && assembly_settle(a)) {
        take_big(c, b, l, a->data);
        a->data = NULL;
    }
    assembly_release(a);
    return CUDA_SUCCESS;
}

/* A batch that is being filled from the ring. */
struct filling {
    struct batch *batch;
    struct ring_extent extent;
    uint64_t index; /* of the next slot */
    uint32_t place; /* of the next record, where that is a launch's */
    bool full;
    CUresult r;
};

/* A published record: its bytes join the batch. Return: false: it waits for the next one. */
static bool take_record(struct context *c, struct filling *f, const struct lying *l)
{
    struct batch *b = f->batch;
    uint64_t padded = ring_padded(l->n_bytes);
    bool piece = l->note.assembly;
    if (piece || padded > c->staging->batch_bytes) {
        bool alone = !b->n; /* in its batch */
        f->full = true;
        if (alone)
            f->r = (piece ? copy_piece : copy_big)(c, b, l);
        return alone;
    }
    f->full = padded > c->staging->batch_bytes - b->used;
    if (f->full)
        return false;
    if (!f->extent.n || l->payload != f->extent.from + f->extent.n) {
        f->r = copy_extent(c, &f->extent);
        f->extent = (struct ring_extent){ .from = l->payload, .to = b->mem + b->used };
    }
    if (!describe(c, l, b)) {
        drop_record(l, DMI_DROP_NO_MEMORY);
        return true;
    }
    b->records[b->n++].data = b->mem + b->used;
    b->used += padded;
    f->extent.n += padded;
    return true;
}

static void drop_wild(const struct lying *l)
{
    session_problem(l->site, PROBLEM_BAD_POINTER,
                    "a number in its list of slots lies beyond the tensor's allocation");
    drop_record(l, DMI_DROP_BAD_POINTER);
}

static bool has_room(const struct filling *f)
{
    return f->r == CUDA_SUCCESS && !f->full && f->batch->n < STAGING_MAX_RECORDS;
}

/* Did the device copy what the host reserved? */
static bool sums_agree(const struct context *c, uint64_t index)
{
    const struct launch_note *launch = launch_note(&c->ring, index);
    uint32_t sum = 0;
    for (uint32_t i = 0; i < ring_slot(&c->ring, index)->n_records; i++) {
        const struct launch_record *r = launch_record(launch, i);
        if (ring_record(&c->ring, index, i) != RING_NOT_RUN)
            sum += dmi_copy_sum(r->site, r->n_bytes);
    }
    return sum == ring_launch_sum(&c->ring, index);
}

/* Record number f->place of the launch in the next slot. Return: false: it waits for the next batch. */
static bool take_of_launch(struct context *c, struct filling *f)
{
    struct lying l = lies_in_launch(c, f->index, f->place);
    switch (ring_record(&c->ring, f->index, f->place)) {
    case RING_NOT_RUN: drop_record(&l, DMI_DROP_NOT_RUN); return true;
    case RING_WILD: drop_wild(&l); return true;
    default: return take_record(c, f, &l);
    }
}

/* As many of a launch's records as the batch has room for. */
static void take_launch(struct context *c, struct filling *f)
{
    uint32_t n = ring_slot(&c->ring, f->index)->n_records;
    if (!f->place && !sums_agree(c, f->index)) {
        drop_slot(c, f->index++, 0, DMI_DROP_MISMATCH);
        return;
    }
    while (f->place < n && has_room(f) && take_of_launch(c, f))
        f->place++;
    if (f->place < n)
        return;
    launch_records_release(launch_note(&c->ring, f->index)->records);
    f->place = 0;
    f->index++;
}

static void take_alone(struct context *c, struct filling *f)
{
    struct lying l = lies_alone(c, f->index);
    f->index += take_record(c, f, &l);
}

/* Return: false where the next slot must wait: it is not published, or the batch is full. */
static bool take_next(struct context *c, struct filling *f)
{
    struct lying l;
    switch (ring_poll(&c->ring, f->index)) {
    case RING_EMPTY:
    case RING_PENDING: return false;
    case RING_READY:
        (ring_is_launch(ring_slot(&c->ring, f->index)) ? take_launch : take_alone)(c, f);
        break;
    case RING_VOID: f->index++; break;
    case RING_NOT_RUN: /* of a launch's records alone */
    case RING_MISMATCH: drop_slot(c, f->index++, 0, DMI_DROP_MISMATCH); break;
    case RING_WILD:
        l = lies_alone(c, f->index++);
        drop_wild(&l);
        break;
    }
    return has_room(f);
}

/*
 * Fills @b with what is published, in order, and waits for its bytes. b->end_slot says how far it got; records of
 * slots before it are in the batch, or were void, or are counted drops.
 */
static CUresult collect(struct context *c, struct batch *b)
{
    struct filling f = { .batch = b, .index = c->ring.tail_slot, .place = c->n_taken };
    while (take_next(c, &f))
        ;
    b->end_slot = f.index;
    c->n_taken = f.place;
    if (f.r == CUDA_SUCCESS)
        f.r = copy_extent(c, &f.extent);
    if (f.r == CUDA_SUCCESS && b->used)
        f.r = c->side->finish(c);
    return f.r;
}

/* Of those in flight from slot @from on, and before @end, none comes. Return: the slot after the last of them. */
static uint64_t drop_until(struct context *c, uint64_t from, uint64_t end, enum dmi_drop reason)
{
    pthread_mutex_lock(&c->lock); /* whoever reserves has filled its slots' user data */
    uint64_t head = atomic_load_acquire(&c->ring.head_slot);
    pthread_mutex_unlock(&c->lock);
    end = end < head ? end : head;
    for (uint64_t i = from; i < end; i++)
        /* its launch may be refused right now: either we count its record, or its thread takes it back */
        if (ring_give_up(&c->ring, i))
            drop_slot(c, i, i == from ? c->n_taken : 0, reason);
    if (end > from)
        c->n_taken = 0;
    return end > from ? end : from;
}

/* Sites whose copies are not published, by the number of those. */
struct unpublished {
    uint32_t site[NAMED_SITES], n[NAMED_SITES];
    uint32_t n_sites, n_others;
};

static void count_site(struct unpublished *f, uint32_t site)
{
    uint32_t i = 0;
    while (i < f->n_sites && f->site[i] != site)
        i++;
    if (i == NAMED_SITES) {
        f->n_others++;
        return;
    }
    if (i == f->n_sites)
        f->site[f->n_sites++] = site;
    f->n[i]++;
}

/* Under the lock: a thread that cancels a launch lets go of its records. */
static void count_in_flight(const struct context *c, uint64_t index, struct unpublished *f)
{
    const struct ring_slot *slot = ring_slot(&c->ring, index);
    if (ring_poll(&c->ring, index) != RING_PENDING)
        return;
    for (uint32_t i = 0; i < slot->n_records; i++)
        count_site(f, launch_record(launch_note(&c->ring, index), i)->site);
    if (!ring_is_launch(slot))
        count_site(f, slot->site);
}

/* One line, which names the copies in flight: one of them may have read memory that the application had given back. */
static void say_broken(struct context *c, uint64_t from, CUresult r)
{
    struct unpublished f = { .n_sites = 0 };
    char text[512] = "none";
    size_t at = 0;
    pthread_mutex_lock(&c->lock);
    uint64_t head = atomic_load_acquire(&c->ring.head_slot);
    for (uint64_t i = from; i < head; i++)
        count_in_flight(c, i, &f);
    pthread_mutex_unlock(&c->lock);
    for (uint32_t i = 0; i < f.n_sites && at < sizeof text; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%u of %s", i ? ", " : "", f.n[i],
                               session_site(f.site[i])->about.name);
    if (f.n_others && at < sizeof text)
        snprintf(text + at, sizeof text - at, ", %u of others", f.n_others);
    log_line("device %d: error %d, its records from here on are dropped; copies in flight: %s",
             c->device, (int)r, text);
}

static void fail(struct context *c, struct batch *b, CUresult r)
{
    if (!c->broken)
        say_broken(c, b->end_slot, r);
    atomic_store_release(&c->broken, (int)r); /* to context_refusal() */
    for (uint32_t i = 0; i < b->n; i++)
        session_drop(b->records[i].site, DMI_DROP_DEVICE_ERROR, b->records[i].dims[0],
                     b->records[i].n_bytes);
    b->n = 0;
    b->end_slot = drop_until(c, b->end_slot, UINT64_MAX, DMI_DROP_DEVICE_ERROR);
}

/* ------------------------------------------------------------------------- the thread */

/* Is one in @share parts of the ring in flight? */
static bool is_pressed(const struct ring *ring, uint32_t share)
{
    return ring_in_flight(ring) >= ring->n_slots / share ||
           ring_bytes_in_flight(ring) >= ring->n_bytes / share;
}

/* Few records in a roomy ring, and the last batch is not long ago: more may join them. */
static bool may_gather(const struct context *c, uint64_t last_batch_ns, uint64_t now)
{
    const struct ring *ring = &c->ring;
    return now - last_batch_ns < BATCH_NS && !is_pressed(ring, PRESSED_SHARE) &&
           ring_bytes_in_flight(ring) < c->staging->batch_bytes &&
           !row_lists_are_pressed(&c->row_lists);
}

/* The drain thread's own. */
struct drain {
    struct context *context;
    CUresult r;          /* of its calls; a sticky error ends them */
    uint64_t healthy_ns; /* when the ring last moved, or the context said that it is sound */
    uint64_t batch_ns;   /* when the last batch was handed over */
};

static void nap(const struct context *c)
{
    sleep_ns(ring_in_flight(&c->ring) ? POLL_BUSY_NS : POLL_IDLE_NS);
}

/* Fills @b, or decides that what is in flight is lost. */
static void fill_batch(struct drain *d, struct batch *b, uint64_t stop_ns)
{
    struct context *c = d->context;
    b->end_slot = c->ring.tail_slot;
    if (d->r == CUDA_SUCCESS)
        d->r = collect(c, b);
    uint64_t now = clock_mono_ns();
    bool stuck = b->end_slot == c->ring.tail_slot && !b->n && ring_in_flight(&c->ring);
    if (stuck && d->r == CUDA_SUCCESS && now - d->healthy_ns > HEALTH_NS) {
        /* our own stream is idle: this returns at once, with the context's sticky error if any */
        d->r = c->side->finish(c);
        d->healthy_ns = now;
    }
    if (d->r != CUDA_SUCCESS)
        fail(c, b, d->r);
    else if (stuck && stop_ns && now > stop_ns)
        b->end_slot = drop_until(c, b->end_slot, atomic_load_relaxed(&c->stop_slot),
                                 atomic_load_relaxed(&c->stop_reason));
}

/* What was in the slots before @end_slot has left the ring. */
static void release(struct context *c, uint64_t end_slot)
{
    uint64_t n = 0;
    if (end_slot == c->ring.tail_slot)
        return;
    for (uint64_t i = c->ring.tail_slot; i < end_slot; i++)
        n += ring_slot(&c->ring, i)->n_bytes;
    atomic_add_relaxed(&c->drained_bytes, n);
    gauge_releases(c, end_slot);
    ring_release(&c->ring, end_slot);
}

void drain_give_up(struct context *c, enum dmi_drop reason)
{
    release(c, drop_until(c, c->ring.tail_slot, UINT64_MAX, reason));
}

/* Return: false once all is taken that was in the ring when it was asked to end. */
static bool drain_round(struct drain *d)
{
    struct context *c = d->context;
    uint64_t stop_ns = atomic_load_acquire(&c->stop_ns); /* of workers_stop() */
    uint64_t now = clock_mono_ns();
    edit_region_follow(c, now);
    if (!stop_ns && d->r == CUDA_SUCCESS && may_gather(c, d->batch_ns, now)) {
        nap(c);
        return true;
    }
    struct batch *b = staging_take_idle(c->staging);
    if (stop_ns && c->ring.tail_slot >= atomic_load_relaxed(&c->stop_slot) &&
        (edit_region_is_over(c) || d->r != CUDA_SUCCESS || now > stop_ns)) {
        staging_give_idle(c->staging, b);
        return false;
    }
    fill_batch(d, b, stop_ns);
    if (b->end_slot != c->ring.tail_slot || b->n) {
        b->pressed = is_pressed(&c->ring, BACKLOG_SHARE);
        release(c, b->end_slot);
        gauge_given(c);
        staging_give_full(c->staging, b);
        d->healthy_ns = d->batch_ns = clock_mono_ns();
        return true;
    }
    staging_give_idle(c->staging, b);
    nap(c);
    return true;
}

void *drain_main(void *arg)
{
    struct context *c = arg;
    struct drain drain = { .context = c, .healthy_ns = clock_mono_ns() };
    pthread_setname_np(pthread_self(), "dmi-drain");
    session_attach();
    drain.r = c->side->enter(c);
    while (drain_round(&drain))
        ;
    staging_end(c->staging);
    return NULL;
}
