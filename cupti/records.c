/* SPDX-License-Identifier: Apache-2.0 */
#include "cupti/records.h"

#include "cupti/layouts.h"

#include <string.h>

static uint64_t u64_at(const uint8_t *record, size_t offset)
{
    uint64_t value;
    memcpy(&value, record + offset, sizeof value);
    return value;
}

static uint32_t u32_at(const uint8_t *record, size_t offset)
{
    uint32_t value;
    memcpy(&value, record + offset, sizeof value);
    return value;
}

bool records_is_own(const char *name)
{
    return name && !strncmp(name, "dmi_", 4);
}

/* CUpti_ActivityKernel8 to 13 */
static void read_kernel(const uint8_t *r, struct records_event *e)
{
    uint16_t registers;
    uintptr_t name;
    memcpy(&registers, r + 6, sizeof registers);
    memcpy(&name, r + 104, sizeof name);
    e->registers = registers;
    e->begin_ns = u64_at(r, 16);
    e->end_ns = u64_at(r, 24);
    e->device = u32_at(r, 40);
    e->context = u32_at(r, 44);
    e->stream = u32_at(r, 48);
    for (int i = 0; i < 3; i++) {
        e->grid[i] = u32_at(r, 52 + 4 * (size_t)i);
        e->block[i] = u32_at(r, 64 + 4 * (size_t)i);
    }
    e->static_shared = u32_at(r, 76);
    e->dynamic_shared = u32_at(r, 80);
    e->correlation = u32_at(r, 92);
    e->name = (const char *)name;
    e->node = u64_at(r, 144);
    e->graph = u32_at(r, 156);
}

/* Where the record says from which node its own was instantiated. */
static void read_source(const uint8_t *r, struct records_event *e)
{
    uint64_t source = u64_at(r, LAYOUTS_SOURCE);
    e->node = source ? source : e->node;
}

/* CUpti_ActivityMemcpy5 to 7, Memset4 and 5, MemcpyPtoP4: alike but for what comes after the stream. */
static void read_copy(const uint8_t *r, struct records_event *e)
{
    bool peer = e->kind == LAYOUTS_COPY_PEER;
    e->how = e->kind == LAYOUTS_SET ? 0 : r[4];
    e->bytes = u64_at(r, 8);
    e->begin_ns = u64_at(r, 16);
    e->end_ns = u64_at(r, 24);
    e->device = u32_at(r, 32);
    e->context = u32_at(r, 36);
    e->stream = u32_at(r, 40);
    e->correlation = u32_at(r, peer ? 60 : 44);
    e->node = u64_at(r, peer ? 72 : 64);
    e->graph = u32_at(r, peer ? 80 : 72);
}

/* Return: whether the record was of a kind that is read, and has times. */
static bool read_record(const uint8_t *record, size_t n_left, struct records_walk *walk,
                        struct records_event *e)
{
    uint32_t kind = n_left >= sizeof kind ? u32_at(record, 0) : 0, prefix = layouts_prefix(kind);
    *e = (struct records_event){ .kind = kind };
    if (!prefix || prefix > n_left) {
        walk->n_unread++;
        return false;
    }
    if (kind == LAYOUTS_KERNEL)
        read_kernel(record, e);
    else
        read_copy(record, e);
    bool timed = e->begin_ns && e->end_ns >= e->begin_ns;
    walk->n_no_time += !timed;
    return timed;
}

/* Does the record at @before, of @n_bytes by the table (0: it does not say), end elsewhere than @record begins? */
static bool is_strange(uint32_t n_bytes, const uint8_t *before, const uint8_t *record)
{
    return before && n_bytes && record - before != (ptrdiff_t)n_bytes;
}

int records_walk(records_next *next, uint32_t version, uint8_t *buffer, size_t n_valid,
                 struct records_walk *walk,
                 void (*fn)(void *ctx, const struct records_event *event), void *ctx)
{
    uint8_t *record = NULL, *before = NULL;
    struct records_event e = { 0 };
    uint32_t kind = 0, n_bytes = 0; /* of the record before, by the table */
    bool has_source = layouts_bytes(version, LAYOUTS_KERNEL) >= LAYOUTS_WITH_SOURCE;
    int r;
    while (!(r = next(buffer, n_valid, &record))) {
        size_t at = (size_t)(record - buffer);
        if (e.kind != kind)
            n_bytes = layouts_bytes(version, kind = e.kind);
        walk->n_strange += is_strange(n_bytes, before, record);
        walk->n++;
        before = record;
        if (at >= n_valid) { /* a walker that leaves the buffer is not followed */
            walk->n_unread++;
            break;
        }
        if (!read_record(record, n_valid - at, walk, &e))
            continue;
        if (e.kind == LAYOUTS_KERNEL && has_source && n_valid - at >= LAYOUTS_WITH_SOURCE)
            read_source(record, &e);
        fn(ctx, &e);
    }
    if (r && r != RECORDS_END)
        walk->refused = r;
    return r;
}
