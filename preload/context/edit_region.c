/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/context/edit_region.h"

#include "preload/base/driver.h"
#include "preload/context/context.h"
#include "preload/session/session.h"

#include <dmi/edit.h>

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#define DEFAULT_BYTES (64ull << 20)
#define COUNTER_BYTES (EDIT_COUNTERS * sizeof(uint64_t))

/* A table in all regions; in the order of their places. */
struct table {
    uint64_t at, n; /* bytes */
    const void *bytes;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* never held across a driver call */
static struct region {
    uint64_t n_bytes; /* 0: there are no edits */
    struct table *tables;
    size_t n_tables;
} region;

static uint64_t rounded(uint64_t n)
{
    return (n + DMI_EDIT_ALIGN - 1) & ~(uint64_t)(DMI_EDIT_ALIGN - 1);
}

int edit_region_start(uint64_t n_bytes)
{
    region.n_bytes = rounded(n_bytes ? n_bytes : DEFAULT_BYTES) + COUNTER_BYTES;
    return 0;
}

/* The first gap that is large enough. Return: its offset, 0: there is none; *@before: tables before it. */
static uint64_t find_gap(uint64_t n, size_t *before)
{
    uint64_t at = COUNTER_BYTES;
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

int edit_region_place(struct err *err, const void *bytes, size_t n, uint32_t *at)
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
        tables[before] = (struct table){ gap, n, bytes };
    }
    pthread_mutex_unlock(&lock);
    *at = (uint32_t)(gap / DMI_EDIT_ALIGN);
    return gap ? 0
               : err_set(
                     err, -ENOSPC,
                     "edits need %zu bytes of device memory, and \"edits: {bytes: ...}\" of the "
                     "HookSpec leaves less",
                     n);
}

void edit_region_free(uint32_t at)
{
    pthread_mutex_lock(&lock);
    size_t i = 0;
    while (i < region.n_tables && region.tables[i].at != (uint64_t)at * DMI_EDIT_ALIGN)
        i++;
    for (region.n_tables -= i < region.n_tables; i < region.n_tables; i++)
        region.tables[i] = region.tables[i + 1];
    pthread_mutex_unlock(&lock);
}

/* Return: 0, or -EIO with the call's name in @err. */
static int check(struct err *err, CUresult r, const char *call)
{
    return r == CUDA_SUCCESS ? 0 : err_set(err, -EIO, "%s gave error %d", call, (int)r);
}

/* Table number @i, while it stays. Return: false: there is no such table. */
static bool table_at(size_t i, struct table *out)
{
    pthread_mutex_lock(&lock);
    bool found = i < region.n_tables;
    if (found)
        *out = region.tables[i];
    pthread_mutex_unlock(&lock);
    return found;
}

int edit_region_init(struct err *err, struct context *c)
{
    struct table t;
    if (!region.n_bytes)
        return 0;
    int r = check(err, driver_table.cuMemAlloc_v2(&c->edits, region.n_bytes), "cuMemAlloc_v2");
    if (!r)
        r = check(err, driver_table.cuMemsetD8Async(c->edits, 0, COUNTER_BYTES, c->stream),
                  "cuMemsetD8Async");
    for (size_t i = 0; !r && table_at(i, &t); i++)
        r = check(err, driver_table.cuMemcpyHtoDAsync_v2(c->edits + t.at, t.bytes, t.n, c->stream),
                  "cuMemcpyHtoDAsync_v2");
    return r ? r : check(err, driver_table.cuStreamSynchronize(c->stream), "cuStreamSynchronize");
}

void edit_region_give_back(struct context *c)
{
    if (c->edits)
        driver_table.cuMemFree_v2(c->edits);
}

void edit_region_reset(void)
{
    pthread_mutex_t unlocked = PTHREAD_MUTEX_INITIALIZER;
    lock = unlocked;
    region = (struct region){ 0 };
}
