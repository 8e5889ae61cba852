/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/capture/regions.h"

#include "core/atomic.h"
#include "core/locked.h"
#include "preload/base/handles.h"
#include "preload/capture/intervals.h"
#include "preload/session/session.h"

#include <pthread.h>
#include <stdlib.h>

/* Physical memory. It is there while handles or mappings refer to it. */
struct memory {
    struct region *mappings;
    uint32_t n_holders;
    bool shared;
};

/* What a handle stands for, until it was released as often as it was given out. */
struct physical_handle {
    struct memory *memory;
    uint64_t n_given;
};

struct region {
    struct interval interval;    /* first: intervals.h gives it back */
    struct memory *memory;       /* of a mapping; NULL: it is an allocation */
    struct region *next, **link; /* of its memory's mappings */
    uint64_t unsure;             /* of an allocation: regions.unsure when the driver was asked */
};

static struct {
    pthread_mutex_t lock;
    struct intervals intervals;
    struct handles holders;
    uint64_t unsure; /* rises in regions_unsure() */
    uint64_t moment; /* rises when memory ends; atomic, written under the lock */
} regions = { .lock = PTHREAD_MUTEX_INITIALIZER, .holders = HANDLES_INIT };

static struct region *region_of(struct interval *interval)
{
    return (struct region *)interval;
}

/* What is shared is not known any more: all is left alone. */
static void no_memory(void)
{
    session_give_up_all("no memory to note mapped and shared memory");
}

/* ------------------------------------------------------------------------- physical memory */

static void memory_settle(struct memory *memory)
{
    if (!memory->mappings && !memory->n_holders)
        free(memory);
}

static const void *key_of(uint64_t handle)
{
    return (const void *)(uintptr_t)handle;
}

static struct physical_handle *holder_find(uint64_t handle)
{
    return handle ? handles_find(&regions.holders, key_of(handle)) : NULL;
}

static void holder_free(struct physical_handle *holder)
{
    holder->memory->n_holders--;
    memory_settle(holder->memory);
    free(holder);
}

/* @handle was given out for @memory, once more or for the first time. Return: false without memory. */
static bool give(uint64_t handle, struct memory *memory)
{
    struct physical_handle *holder = holder_find(handle);
    if (holder && holder->memory == memory) {
        holder->n_given++;
        return true;
    }
    if (holder) /* it came back, and nobody saw its release */
        holder_free(handles_set(&regions.holders, key_of(handle), NULL));
    holder = malloc(sizeof *holder);
    if (!holder)
        return false;
    *holder = (struct physical_handle){ .memory = memory, .n_given = 1 };
    if (handles_set(&regions.holders, key_of(handle), holder) == holder) {
        free(holder);
        return false;
    }
    memory->n_holders++;
    return true;
}

/* What @handle stands for; where that is not known, memory that nothing is mapped to. Return: NULL without memory. */
static struct memory *memory_of(uint64_t handle)
{
    struct physical_handle *holder = holder_find(handle);
    if (holder)
        return holder->memory;
    struct memory *memory = calloc(1, sizeof *memory);
    if (memory && give(handle, memory))
        return memory;
    free(memory);
    return NULL;
}

static void memory_share(struct memory *memory)
{
    if (memory->shared)
        return;
    memory->shared = true;
    for (struct region *r = memory->mappings; r; r = r->next)
        intervals_share(&regions.intervals, &r->interval);
}

/* ------------------------------------------------------------------------- regions */

static void region_free(struct region *r)
{
    if (r->memory) {
        *r->link = r->next;
        if (r->next)
            r->next->link = r->link;
        memory_settle(r->memory);
    }
    free(r);
}

/* Frees what was cut out. Return: whether there was any. */
static bool drop(struct interval *cut)
{
    bool any = cut;
    for (struct interval *r; (r = intervals_pop(&cut));)
        region_free(region_of(r));
    return any;
}

/* In place of whatever overlaps it. */
static void add(struct region *r)
{
    drop(intervals_cut(&regions.intervals, r->interval.base, r->interval.n_bytes));
    intervals_add(&regions.intervals, &r->interval);
}

static struct region *allocation_new(uint64_t base, uint64_t n_bytes, bool shared)
{
    struct region *r = malloc(sizeof *r);
    if (r)
        *r = (struct region){ .interval = { .base = base,
                                            .n_bytes = n_bytes,
                                            .shared = shared,
                                            .readable = UINT64_MAX },
                              .unsure = regions.unsure };
    return r;
}

static struct region *mapping_new(uint64_t base, uint64_t n_bytes, struct memory *memory)
{
    struct region *r = malloc(sizeof *r);
    if (!r)
        return NULL;
    *r = (struct region){
        .interval = { .base = base, .n_bytes = n_bytes, .mapping = true, .shared = memory->shared },
        .memory = memory,
        .next = memory->mappings,
        .link = &memory->mappings,
    };
    if (r->next)
        r->next->link = &r->next;
    memory->mappings = r;
    return r;
}

/* ------------------------------------------------------------------------- looking */

static bool is_known(const struct region *r)
{
    return r->memory || r->unsure == regions.unsure;
}

bool regions_find(uint64_t first, uint64_t n_bytes, int device, struct memory_range *range)
{
    uint64_t limit = intervals_end(first, n_bytes);
    pthread_mutex_lock(&regions.lock);
    struct interval *r = intervals_find(&regions.intervals, first);
    bool known = r && is_known(region_of(r));
    if (known) {
        struct interval_run run = intervals_run(&regions.intervals, r, device, limit);
        *range = (struct memory_range){ .base = r->base,
                                        .size = run.end - r->base,
                                        .shared = run.shared,
                                        .closed = run.closed,
                                        .barred = run.barred };
    }
    pthread_mutex_unlock(&regions.lock);
    return known;
}

uint64_t regions_moment(void)
{
    return atomic_load_acquire(&regions.moment); /* of memory_ends() */
}

/* Is what is known there the allocation that the driver has named? What is known no more is shared only if it is the same. */
static bool agrees(struct memory_range *range)
{
    bool agrees = true;
    for (struct interval *r = intervals_after(&regions.intervals, range->base);
         r && r->base < range->base + range->size;
         r = intervals_after(&regions.intervals, r->base + r->n_bytes)) {
        bool same = r->base == range->base && r->n_bytes == range->size;
        bool known = is_known(region_of(r));
        range->shared = range->shared || (r->shared && (same || known));
        agrees = agrees && (same || !known);
    }
    return agrees;
}

bool regions_found(struct memory_range *range, uint64_t moment)
{
    struct region *r = NULL;
    pthread_mutex_lock(&regions.lock);
    if (agrees(range) && moment == regions.moment)
        r = allocation_new(range->base, range->size, range->shared);
    if (r)
        add(r);
    pthread_mutex_unlock(&regions.lock);
    return r;
}

/* ------------------------------------------------------------------------- memory that begins */

void regions_mapped(uint64_t base, uint64_t n_bytes, uint64_t handle)
{
    pthread_mutex_lock(&regions.lock);
    struct memory *memory = memory_of(handle);
    struct region *mapping = memory ? mapping_new(base, n_bytes, memory) : NULL;
    if (mapping)
        add(mapping);
    else
        no_memory();
    pthread_mutex_unlock(&regions.lock);
    session_memory_freed(); /* a run may go on where it ended */
}

void regions_permit(uint64_t base, uint64_t n_bytes, uint64_t granted, uint64_t revoked)
{
    UNDER(&regions.lock, intervals_permit(&regions.intervals, base, n_bytes, granted, revoked));
    session_memory_freed();
}

/* ------------------------------------------------------------------------- memory that ends */

struct region *regions_end(uint64_t base, uint64_t n_bytes)
{
    struct interval *cut = LOCKED(&regions.lock, intervals_cut(&regions.intervals, base, n_bytes));
    return cut ? region_of(cut) : NULL;
}

/* The driver has refused: they are there as before, in place of what was found meanwhile. */
static void put_back(struct interval *cut)
{
    for (struct interval *r; (r = intervals_pop(&cut));) {
        struct region *region = region_of(r);
        if (region->memory)
            r->shared = region->memory->shared;
        add(region);
    }
}

/* Allocations that were found while the driver's call was under way. */
static bool drop_found(uint64_t base, uint64_t n_bytes)
{
    bool any = false;
    uint64_t end = intervals_end(base, n_bytes);
    for (struct interval *r; (r = intervals_after(&regions.intervals, base)) && r->base < end;) {
        uint64_t first = r->base;
        base = r->base + r->n_bytes;
        if (!region_of(r)->memory && !r->shared)
            any = drop(intervals_cut(&regions.intervals, first, 1)) || any;
    }
    return any;
}

/* Under the lock. */
static void memory_ends(void)
{
    atomic_store_release(&regions.moment, regions.moment + 1); /* to regions_moment() */
}

void regions_ended(uint64_t base, uint64_t n_bytes, struct region *ending, bool ended)
{
    struct interval *cut = ending ? &ending->interval : NULL;
    bool any = cut;
    pthread_mutex_lock(&regions.lock);
    memory_ends();
    if (ended)
        drop(cut);
    else
        put_back(cut);
    any = drop_found(base, n_bytes) || any;
    pthread_mutex_unlock(&regions.lock);
    if (any)
        session_memory_freed();
}

void regions_unsure(void)
{
    pthread_mutex_lock(&regions.lock);
    regions.unsure++;
    memory_ends();
    pthread_mutex_unlock(&regions.lock);
    session_memory_freed();
}

/* ------------------------------------------------------------------------- handles, and what is shared */

/* Under the lock. */
static void share_memory_of(uint64_t handle)
{
    struct memory *memory = memory_of(handle);
    if (memory)
        memory_share(memory);
    else
        no_memory();
}

void regions_share_handle(uint64_t handle)
{
    UNDER(&regions.lock, share_memory_of(handle));
    session_memory_freed(); /* what was found before is looked at again */
}

void regions_imported(uint64_t handle)
{
    pthread_mutex_lock(&regions.lock);
    struct physical_handle *holder = holder_find(handle);
    if (holder)
        holder->n_given++;
    share_memory_of(handle);
    pthread_mutex_unlock(&regions.lock);
    session_memory_freed(); /* the same */
}

void regions_retained(uint64_t address, uint64_t handle)
{
    pthread_mutex_lock(&regions.lock);
    struct interval *r = intervals_find(&regions.intervals, address);
    struct memory *memory = r ? region_of(r)->memory : NULL;
    if (memory && !give(handle, memory))
        no_memory();
    pthread_mutex_unlock(&regions.lock);
}

struct memory *regions_release(uint64_t handle)
{
    pthread_mutex_lock(&regions.lock);
    struct physical_handle *holder = holder_find(handle);
    struct memory *memory = holder ? holder->memory : NULL;
    if (memory)
        memory->n_holders++; /* until regions_released() */
    if (holder && !--holder->n_given)
        holder_free(handles_set(&regions.holders, key_of(handle), NULL));
    pthread_mutex_unlock(&regions.lock);
    return memory;
}

void regions_released(uint64_t handle, struct memory *releasing, bool released)
{
    if (!releasing)
        return;
    pthread_mutex_lock(&regions.lock);
    if (!released && !give(handle, releasing))
        no_memory();
    releasing->n_holders--;
    memory_settle(releasing);
    pthread_mutex_unlock(&regions.lock);
}

void regions_share(uint64_t base, uint64_t n_bytes)
{
    pthread_mutex_lock(&regions.lock);
    struct interval *r = intervals_find(&regions.intervals, base);
    struct region *allocation = NULL;
    if (r && region_of(r)->memory)
        memory_share(region_of(r)->memory);
    else if ((allocation = allocation_new(base, n_bytes, true)))
        add(allocation); /* once, however often it is shared */
    else
        no_memory();
    pthread_mutex_unlock(&regions.lock);
    session_memory_freed(); /* the same */
}

void regions_reset(void)
{
    regions.lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    regions.intervals = (struct intervals){ 0 };
    regions.holders = (struct handles)HANDLES_INIT;
}
