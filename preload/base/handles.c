/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/base/handles.h"

#include "core/atomic.h"

#include <stddef.h>
#include <sys/mman.h>

#define FIRST_BITS 10
#define MAX_BITS   26
#define MAX_PROBES 64

static struct handle_entry *at(struct handle_slots *slots, const void *handle, uint32_t probe)
{
    /* Fibonacci hashing: handles are pointers, their low bits say little */
    uint32_t first = (uint32_t)(((uintptr_t)handle * 0x9E3779B97F4A7C15u) >> (64 - slots->bits));
    return &slots->entries[(first + probe) & ((1u << slots->bits) - 1)];
}

/* ------------------------------------------------------------------------- readers */

/*
 * The value of an entry that was seen to be @handle's. The place may go to another handle meanwhile: what was read is
 * @handle's if the entry says so again afterwards. Return: false if it does not.
 */
static bool value_of(const struct handle_entry *e, const void *handle, void **value)
{
    *value = atomic_load_acquire(&e->value);            /* of put() */
    return atomic_load_acquire(&e->handle) == handle && /* the same */
           atomic_load_acquire(&e->value) == *value;
}

void *handles_find(const struct handles *table, const void *handle)
{
    struct handle_slots *slots = atomic_load_acquire(&table->slots); /* of grow() */
    void *value;
    for (uint32_t probe = 0; slots && probe < MAX_PROBES; probe++) {
        const struct handle_entry *e = at(slots, handle, probe);
        const void *there = atomic_load_acquire(&e->handle); /* of put(), sweep() */
        if (!there)
            return NULL;
        if (there == handle && value_of(e, handle, &value))
            return value;
    }
    return NULL;
}

void handles_each(struct handles *table, void (*fn)(const void *handle, void *value, void *ctx),
                  void *ctx)
{
    struct handle_slots *slots = atomic_load_acquire(&table->slots); /* of grow() */
    for (uint32_t i = 0; slots && i < 1u << slots->bits; i++) {
        const void *handle = atomic_load_acquire(&slots->entries[i].handle); /* of put() */
        void *value;
        if (handle && value_of(&slots->entries[i], handle, &value) && value)
            fn(handle, value, ctx);
    }
}

/* ------------------------------------------------------------------------- writers, under the lock */

/* The entry of @handle, or (with @free) the one that it may take. NULL: none. */
static struct handle_entry *find(struct handle_slots *slots, const void *handle, bool free)
{
    struct handle_entry *place = NULL;
    for (uint32_t probe = 0; slots && probe < MAX_PROBES; probe++) {
        struct handle_entry *e = at(slots, handle, probe);
        if (e->handle == handle)
            return e;
        if (!e->value && !place)
            place = e;
        if (!e->handle)
            break;
    }
    return free ? place : NULL;
}

/* The value follows the handle: a reader who sees the new value sees that the entry is another's. */
static void put(struct handle_entry *e, const void *handle, void *value)
{
    if (e->handle != handle)
        atomic_store_release(&e->handle, handle); /* to handles_find() */
    atomic_store_release(&e->value, value);       /* to value_of() */
}

/* Free places in front of one that was never used end no search: they become such again. */
static void sweep(struct handle_slots *slots, struct handle_entry *e)
{
    uint32_t mask = (1u << slots->bits) - 1, i = (uint32_t)(e - slots->entries);
    if (slots->entries[(i + 1) & mask].handle)
        return;
    for (; !slots->entries[i].value && slots->entries[i].handle; i = (i - 1) & mask)
        atomic_store_release(&slots->entries[i].handle, (const void *)NULL); /* to handles_find() */
}

static struct handle_slots *new_slots(uint32_t bits)
{
    size_t size = sizeof(struct handle_slots) + (sizeof(struct handle_entry) << bits);
    void *mem = bits > MAX_BITS ? MAP_FAILED
                                : mmap(NULL, size, PROT_READ | PROT_WRITE,
                                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    struct handle_slots *slots = mem == MAP_FAILED ? NULL : mem;
    if (slots)
        slots->bits = bits;
    return slots;
}

/* All that is kept, in a table of twice the size. It grows further where searches find no place. */
static struct handle_slots *larger(const struct handle_slots *from, uint32_t bits)
{
    struct handle_slots *to = new_slots(bits);
    bool fits = to != NULL;
    for (uint32_t i = 0; from && fits && i < 1u << from->bits; i++) {
        const struct handle_entry *e = &from->entries[i];
        struct handle_entry *place = e->value ? find(to, e->handle, true) : NULL;
        if (place)
            put(place, e->handle, e->value);
        else
            fits = !e->value;
    }
    if (to && !fits)
        munmap(to, sizeof *to + (sizeof(struct handle_entry) << bits));
    return fits ? to : to ? larger(from, bits + 1) : NULL;
}

/* A place for @handle, which has none yet. NULL: there is no memory. */
static struct handle_entry *grow(struct handles *table, const void *handle)
{
    struct handle_slots *slots = table->slots;
    slots = larger(slots, slots ? slots->bits + 1 : FIRST_BITS);
    if (!slots)
        return NULL;
    atomic_store_release(&table->slots, slots); /* to handles_find(), handles_each() */
    return find(slots, handle, true);
}

static struct handle_entry *place_for(struct handles *table, const void *handle)
{
    struct handle_slots *slots = table->slots;
    struct handle_entry *e = find(slots, handle, true);
    bool crowded = slots && e && e->handle != handle && table->n >= 1u << (slots->bits - 1);
    struct handle_entry *roomier = !e || crowded ? grow(table, handle) : NULL;
    return roomier ? roomier : e;
}

void *handles_set(struct handles *table, const void *handle, void *value)
{
    void *before = value;
    pthread_mutex_lock(&table->lock);
    struct handle_entry *e = value ? place_for(table, handle) : find(table->slots, handle, false);
    if (e) {
        before = e->handle == handle ? e->value : NULL;
        table->n += (value != NULL) - (before != NULL);
        put(e, handle, value);
        if (!value)
            sweep(table->slots, e);
    } else if (!value) {
        before = NULL;
    }
    pthread_mutex_unlock(&table->lock);
    return before;
}
