/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/context/edit_region.h"

#include "core/atomic.h"
#include "core/clock.h"
#include "core/locked.h"
#include "preload/context/bank.h"
#include "preload/context/context.h"
#include "preload/context/side_ops.h"

#include <dmi/edit.h>
#include <dmi/edit_account.h>

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#define DEFAULT_BYTES (64ull << 20)
#define FIRST         DMI_EDIT_ALIGN /* offset 0 is no table */
#define FOLLOW_NS     20000000u
#define POLL_NS       500000

/* written, not finite, lacking in the bank */
#define COUNTER_BYTES (3 * DMI_EDIT_ACCOUNTS * sizeof(uint64_t))

/* A table in all regions; in the order of their places. */
struct table {
    uint64_t at, n;  /* bytes */
    uint64_t number; /* among those that were placed, from 1 */
    void *bytes;
    bool over; /* no kernel reads it any more; a drain may still upload it */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* never held across a driver call */
static struct region {
    uint64_t n_bytes; /* 0: there are no edits */
    struct table *tables;
    size_t n_tables;
    uint32_t n_uploads; /* contexts whose tables are uploaded now */
    uint64_t placed;    /* counts tables; atomic */
    const struct edit_watch *watch;
} region;

static uint64_t rounded(uint64_t n)
{
    return (n + DMI_EDIT_ALIGN - 1) & ~(uint64_t)(DMI_EDIT_ALIGN - 1);
}

void edit_region_start(uint64_t n_bytes, const struct edit_watch *watch)
{
    region.n_bytes = rounded(n_bytes ? n_bytes : DEFAULT_BYTES);
    region.watch = watch;
}

size_t edit_region_counter_bytes(void)
{
    return region.n_bytes ? COUNTER_BYTES : 0;
}

/* The first gap that is large enough. Return: its offset, 0: there is none; *@before: tables before it. */
static uint64_t find_gap(uint64_t n, size_t *before)
{
    uint64_t at = FIRST;
    for (size_t i = 0; i <= region.n_tables; i++) {
        uint64_t end = i < region.n_tables ? region.tables[i].at : region.n_bytes;
        *before = i;
        if (end - at >= n)
            return at;
        if (i < region.n_tables)
            at = region.tables[i].at + rounded(region.tables[i].n);
    }
    return 0;
}

int edit_region_place(struct err *err, void *bytes, size_t n, uint32_t *at)
{
    size_t before = 0;
    pthread_mutex_lock(&lock);
    struct table *tables = realloc(region.tables, (region.n_tables + 1) * sizeof *tables);
    if (tables)
        region.tables = tables;
    uint64_t gap = tables ? find_gap(rounded(n), &before) : 0;
    if (gap) {
        for (size_t i = region.n_tables++; i > before; i--)
            tables[i] = tables[i - 1];
        uint64_t number = region.placed + 1;
        tables[before] = (struct table){ gap, n, number, bytes, false };
        atomic_store_release(&region.placed, number); /* to edit_region_follow() */
    }
    pthread_mutex_unlock(&lock);
    *at = (uint32_t)(gap / DMI_EDIT_ALIGN);
    return gap ? 0
               : err_set(err, -ENOSPC,
                         "edits need %zu bytes of memory, and \"edits: {bytes: ...}\" of the "
                         "HookSpec leaves less",
                         n);
}

/* Tables that are over go when nobody uploads. Under the lock. */
static void sweep(void)
{
    size_t n = 0;
    if (region.n_uploads)
        return;
    for (size_t i = 0; i < region.n_tables; i++)
        if (region.tables[i].over)
            free(region.tables[i].bytes);
        else
            region.tables[n++] = region.tables[i];
    region.n_tables = n;
}

void edit_region_free(uint32_t at)
{
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < region.n_tables; i++)
        region.tables[i].over |= region.tables[i].at == (uint64_t)at * DMI_EDIT_ALIGN;
    sweep();
    pthread_mutex_unlock(&lock);
}

/* Return: 0, or -EIO with @what failed in @err. */
static int check(struct err *err, CUresult r, const char *what)
{
    return r == CUDA_SUCCESS ? 0 : err_set(err, -EIO, "%s: error %d", what, (int)r);
}

static void count_uploads(int by)
{
    pthread_mutex_lock(&lock);
    region.n_uploads += (uint32_t)by;
    sweep();
    pthread_mutex_unlock(&lock);
}

/* Table number @i; none goes while one uploads. Return: false: there is no such table. */
static bool table_at(size_t i, struct table *out)
{
    pthread_mutex_lock(&lock);
    bool found = i < region.n_tables;
    if (found)
        *out = region.tables[i];
    pthread_mutex_unlock(&lock);
    return found;
}

/* Tables that the context lacks, up to number @placed. Those that it has may be read now. */
static CUresult upload(struct context *c, uint64_t placed)
{
    struct table t;
    CUresult r = CUDA_SUCCESS;
    count_uploads(1);
    for (size_t i = 0; r == CUDA_SUCCESS && table_at(i, &t); i++)
        if (!t.over && t.number > c->edits.placed && t.number <= placed)
            r = c->side->put(c, c->edits.region + t.at, t.bytes, t.n);
    if (r == CUDA_SUCCESS)
        r = c->side->finish(c);
    if (r == CUDA_SUCCESS)
        atomic_store_release(&c->edits.placed, placed); /* to edit_region_wait() */
    count_uploads(-1);
    return r;
}

int edit_region_init(struct err *err, struct context *c)
{
    if (!region.n_bytes)
        return 0;
    c->edits.seen = calloc(1, COUNTER_BYTES);
    if (!c->edits.seen)
        return err_set(err, -ENOMEM, "no host memory");
    uint64_t placed = atomic_load_acquire(&region.placed);
    int r = check(err, c->side->alloc(&c->edits.region, region.n_bytes), "memory for tables");
    if (!r)
        r = check(err, upload(c, placed), "the upload of tables");
    return r ? r : bank_init(err, c);
}

void edit_region_give_back(struct context *c)
{
    if (c->edits.region)
        c->side->free(c->edits.region, region.n_bytes);
    c->edits.region = 0;
    bank_give_back(c);
}

void edit_region_forget(struct context *c)
{
    if (c->edits.seen && c->edits.counts && !c->desc_is_drivers)
        region.watch->collect(c->edits.counts, c->edits.seen);
    free(c->edits.seen);
    bank_forget(c);
    c->edits = (struct context_edits){ 0 };
}

/* ------------------------------------------------------------------------- the drain */

void edit_region_follow(struct context *c, uint64_t now)
{
    if (!c->edits.region)
        return;
    uint64_t placed = atomic_load_acquire(&region.placed);
    if (placed != c->edits.placed)
        upload(c, placed);
    if (now - c->edits.followed_ns < FOLLOW_NS)
        return;
    c->edits.followed_ns = now;
    unslotted_settle(
        &c->unslotted,
        &c->lock); /* what edits hold until launches are over goes without a next launch */
    region.watch->collect(c->edits.counts, c->edits.seen);
    region.watch->settle();
    bank_follow(c);
}

bool edit_region_is_over(struct context *c)
{
    if (!c->edits.region)
        return true;
    unslotted_settle(&c->unslotted, &c->lock);
    bool over = LOCKED(&c->lock, c->unslotted.tail == c->unslotted.head);
    region.watch->collect(c->edits.counts, c->edits.seen);
    return over;
}

/* How far the contexts that run are. */
struct following {
    uint64_t placed;
    bool all;
};

static void see_context(struct context *c, void *arg)
{
    struct following *f = arg;
    if (context_state(c) == CONTEXT_READY && c->edits.region &&
        atomic_load_acquire(&c->edits.placed) < f->placed)
        f->all = false;
}

bool edit_region_wait(uint64_t timeout_ns)
{
    uint64_t end = clock_mono_ns() + timeout_ns;
    struct following f = { .placed = atomic_load_acquire(&region.placed) };
    const struct timespec pause = { .tv_nsec = POLL_NS };
    for (;;) {
        f.all = true;
        context_each(see_context, &f);
        if (f.all || clock_mono_ns() > end)
            return f.all;
        nanosleep(&pause, NULL);
    }
}

void edit_region_reset(void)
{
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    region = (struct region){ 0 };
}
