/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/recording/pages.h"

#include "core/err.h"
#include "core/grow.h"
#include "preload/base/driver.h"
#include "storage/codec/hash.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define STAGING_BYTES ((size_t)4 << 20)  /* read at once; whole blocks */
#define BATCH_BYTES   ((size_t)32 << 20) /* of one chunk of the file */

struct page {
    uint64_t address; /* 0: free */
    uint64_t hash;
};

/* ------------------------------------------------------------------------- the table */

static struct page *slot_of(struct page *table, size_t room, uint64_t address)
{
    size_t i = (size_t)((address / DMI_RECORDING_BLOCK) * 0x9E3779B97F4A7C15ull >> 20) & (room - 1);
    while (table[i].address && table[i].address != address)
        i = (i + 1) & (room - 1);
    return &table[i];
}

static int make_room(struct pages *p)
{
    if (2 * p->n < p->room)
        return 0;
    size_t room = p->room ? 2 * p->room : 1 << 14;
    struct page *table = calloc(room, sizeof *table);
    if (!table)
        return -ENOMEM;
    for (size_t i = 0; i < p->room; i++)
        if (p->table[i].address)
            *slot_of(table, room, p->table[i].address) = p->table[i];
    free(p->table);
    p->table = table;
    p->room = room;
    return 0;
}

/* ------------------------------------------------------------------------- what changed */

static int write_batch(struct pages *p, struct writer *writer, uint64_t sequence, bool after)
{
    struct dmi_recording_bytes head = { sequence, after, (uint32_t)p->n_runs };
    size_t n_runs = p->n_runs * sizeof *p->runs, n = sizeof head + n_runs + p->n_bytes;
    if (!p->n_runs)
        return 0;
    uint8_t *whole = malloc(n);
    if (!whole)
        return -ENOMEM;
    memcpy(whole, &head, sizeof head);
    memcpy(whole + sizeof head, p->runs, n_runs);
    memcpy(whole + sizeof head + n_runs, p->bytes, p->n_bytes);
    int r = writer_add_compressed(writer, DMI_RECORDING_BYTES, whole, n);
    free(whole);
    p->n_emitted += p->n_bytes;
    p->n_runs = p->n_bytes = 0;
    return r;
}

static int add_bytes(struct pages *p, const void *data, size_t n)
{
    while (p->room_bytes < p->n_bytes + n) {
        size_t room = p->room_bytes ? 2 * p->room_bytes : 1 << 20;
        uint8_t *grown = realloc(p->bytes, room);
        if (!grown)
            return -ENOMEM;
        p->bytes = grown;
        p->room_bytes = room;
    }
    memcpy(p->bytes + p->n_bytes, data, n);
    p->n_bytes += n;
    return 0;
}

/* A block follows the one before, or begins a run. */
static int add_run(struct pages *p, uint64_t address, const void *data, size_t n)
{
    struct dmi_recording_run *last = p->n_runs ? &p->runs[p->n_runs - 1] : NULL;
    int r = add_bytes(p, data, n);
    if (r || (last && last->address + last->n_bytes == address)) {
        if (!r)
            last->n_bytes += n;
        return r;
    }
    r = grow((void **)&p->runs, p->n_runs, &p->room_runs, sizeof *p->runs, 64);
    if (!r)
        p->runs[p->n_runs++] = (struct dmi_recording_run){ address, n };
    return r;
}

static int compare_block(struct pages *p, uint64_t address, const void *data, size_t n, bool emit)
{
    TRY(make_room(p));
    struct page *page = slot_of(p->table, p->room, address);
    uint64_t hash = hash_bytes(data, n);
    if (page->address && page->hash == hash)
        return 0;
    bool known = page->address != 0;
    p->n += !known;
    *page = (struct page){ address, hash };
    return known || emit ? add_run(p, address, data, n) : 0;
}

/* ------------------------------------------------------------------------- reading */

static CUstream handle_of(struct stream stream)
{
    return stream.handle || !stream.per_thread ? stream.handle : CU_STREAM_PER_THREAD;
}

static int read_memory(struct pages *p, struct stream stream, uint64_t address, size_t n)
{
    if (!p->staging && !(p->staging = malloc(STAGING_BYTES)))
        return -ENOMEM;
    struct stream_relaxed relaxed = stream_relax();
    CUresult r = driver_table.cuMemcpyDtoHAsync_v2(p->staging, address, n, handle_of(stream));
    if (r == CUDA_SUCCESS)
        r = driver_table.cuStreamSynchronize(handle_of(stream));
    stream_unrelax(&relaxed);
    return r == CUDA_SUCCESS ? 0 : -EIO;
}

static int look_at(struct pages *p, struct writer *writer, struct stream stream,
                   const struct pages_range *range, uint64_t sequence, bool after)
{
    for (uint64_t at = 0; at < range->n_bytes; at += STAGING_BYTES) {
        size_t n =
            range->n_bytes - at < STAGING_BYTES ? (size_t)(range->n_bytes - at) : STAGING_BYTES;
        int r = read_memory(p, stream, range->address + at, n);
        for (size_t i = 0; !r && i < n; i += DMI_RECORDING_BLOCK)
            r = compare_block(p, range->address + at + i, (uint8_t *)p->staging + i,
                              n - i < DMI_RECORDING_BLOCK ? n - i : DMI_RECORDING_BLOCK,
                              after || range->first_too);
        if (!r && p->n_bytes > BATCH_BYTES)
            r = write_batch(p, writer, sequence, after);
        if (r)
            return r;
    }
    return 0;
}

int pages_look(struct pages *p, struct writer *writer, struct stream stream,
               const struct pages_range *ranges, size_t n_ranges, uint64_t sequence, bool after)
{
    int r = 0;
    for (size_t i = 0; !r && i < n_ranges; i++)
        r = look_at(p, writer, stream, &ranges[i], sequence, after);
    return r ? r : write_batch(p, writer, sequence, after);
}

void pages_deinit(struct pages *p)
{
    free(p->table);
    free(p->staging);
    free(p->runs);
    free(p->bytes);
    *p = (struct pages){ 0 };
}
