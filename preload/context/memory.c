/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/context/memory.h"

#include "core/any.h"
#include "core/log.h"
#include "preload/context/context.h"
#include "preload/context/edit_region.h"
#include "preload/session/session.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#define DEFAULT_SLOTS     8192u
#define MAX_SLOTS         (1u << 16) /* a ticket names slots in 16 bits */
#define MAX_DEFAULT_BYTES (256ull << 20)
#define MIN_DEFAULT_BYTES (8ull << 20)
#define FREE_SHARE        32 /* of the free memory, where nobody said how much */

uint32_t memory_slots(void)
{
    uint64_t want = session.ring_slots ? session.ring_slots : DEFAULT_SLOTS;
    uint32_t slots = RING_MIN_SLOTS;
    while (slots < want && slots < MAX_SLOTS)
        slots *= 2;
    return slots;
}

uint64_t memory_payload_bytes(uint64_t n_free)
{
    uint64_t bytes = session.ring_bytes;
    if (!bytes) {
        bytes = n_free / FREE_SHARE;
        if (bytes > MAX_DEFAULT_BYTES)
            bytes = MAX_DEFAULT_BYTES;
        if (bytes < MIN_DEFAULT_BYTES)
            bytes = MIN_DEFAULT_BYTES;
    }
    bytes = (bytes + RING_ALIGN - 1) & ~(uint64_t)(RING_ALIGN - 1);
    return bytes < RING_MIN_BYTES ? RING_MIN_BYTES : bytes;
}

/* Descriptors, then the lists of rows: those that slots use, those of launches without slots where there are any. */
static size_t descriptors_bytes(uint32_t n_slots)
{
    return ((size_t)n_slots * sizeof(struct dmi_desc) + 4095) & ~(size_t)4095;
}

static uint32_t unslotted_bytes(void)
{
    if (session.spec->n_places)
        return UNSLOTTED_EDIT_BYTES;
    return FIRST(site, session.spec->n_sites, !spec_publishes(session_site(site)), UNSLOTTED_BYTES,
                 0);
}

size_t memory_map_bytes(uint32_t n_slots)
{
    return descriptors_bytes(n_slots) + ROW_LISTS_BYTES + unslotted_bytes() +
           edit_region_counter_bytes();
}

void *memory_map(size_t n_bytes)
{
    void *map = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED)
        return NULL;
    /* nor must a child share pages with a device through copy-on-write */
    madvise(map, n_bytes, MADV_DONTFORK);
    return map;
}

static int init_ring(struct err *err, struct context *c, uint32_t n_slots, uint64_t n_bytes)
{
    struct ring_slot *slots = calloc(n_slots, sizeof *slots);
    if (!slots)
        return err_set(err, -ENOMEM, "no host memory for %u slots", n_slots);
    int r = ring_init(&c->ring, c->desc_map, slots, n_slots, n_bytes);
    if (r)
        free(slots);
    return r ? err_set(err, r, "a ring of %u slots and %llu bytes cannot be", n_slots,
                       (unsigned long long)n_bytes)
             : 0;
}

int memory_init(struct err *err, struct context *c, uint32_t n_slots, uint64_t n_bytes)
{
    size_t at = descriptors_bytes(n_slots);
    char *map = (char *)c->desc_map + at;
    c->lists_device = c->desc_device + at;
    int r = row_lists_init(&c->row_lists, map, 0, ROW_LISTS_BYTES);
    if (!r)
        r = unslotted_init(&c->unslotted, map, ROW_LISTS_BYTES, unslotted_bytes());
    return r ? err_set(err, r, "no host memory for lists of rows")
             : init_ring(err, c, n_slots, n_bytes);
}

/* Without the memory for edits there is capture all the same. */
void memory_init_edits(struct context *c)
{
    struct err err = { 0 };
    size_t at = memory_map_bytes(c->ring.n_slots) - edit_region_counter_bytes();
    c->edits.counts = (const uint64_t *)((char *)c->desc_map + at);
    c->edits.counters = c->desc_device + at;
    if (!edit_region_init(&err, c))
        return;
    log_line("no memory for edits in this context, they write nothing there: %s", err.msg);
    edit_region_give_back(c);
}

void memory_forget(struct context *c, bool map)
{
    edit_region_forget(c);
    if (c->desc_map && map)
        munmap(c->desc_map, c->n_desc_map);
    c->desc_map = NULL;
    row_lists_deinit(&c->row_lists);
    unslotted_deinit(&c->unslotted);
    free(c->ring.slots);
    c->ring.slots = NULL;
}
