/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/base/handles.h"

#include "core/atomic.h"

#include <stddef.h>
#include <sys/mman.h>

/* Pages are only touched where entries fall: the size costs address space, not memory. */
#define TABLE_BITS  16
#define TABLE_SIZE  (1u << TABLE_BITS)
#define MAX_ENTRIES (TABLE_SIZE / 2)
#define MAX_PROBES  64

static struct handle_entry *at(struct handle_entry *entries, const void *handle, uint32_t probe)
{
    /* Fibonacci hashing: handles are pointers, their low bits say little */
    uint32_t slot = (uint32_t)(((uintptr_t)handle * 0x9E3779B97F4A7C15u) >> (64 - TABLE_BITS));
    return &entries[(slot + probe) & (TABLE_SIZE - 1)];
}

/* The entry of @handle; NULL: none. With @empty, the entry that it may take. */
static struct handle_entry *find(struct handle_entry *entries, const void *handle, bool empty)
{
    for (uint32_t probe = 0; probe < MAX_PROBES; probe++) {
        struct handle_entry *e = at(entries, handle, probe);
        const void *there = atomic_load_acquire(&e->handle); /* of handles_set() */
        if (there == handle)
            return e;
        if (!there)
            return empty ? e : NULL;
    }
    return NULL;
}

void *handles_find(const struct handles *table, const void *handle)
{
    struct handle_entry *entries = atomic_load_acquire(&table->entries); /* of handles_set() */
    struct handle_entry *e = entries ? find(entries, handle, false) : NULL;
    return e ? atomic_load_acquire(&e->value) : NULL; /* of handles_set() */
}

void *handles_set(struct handles *table, const void *handle, void *value)
{
    void *before = value;
    pthread_mutex_lock(&table->lock);
    if (!table->entries) {
        void *mem = mmap(NULL, TABLE_SIZE * sizeof(struct handle_entry), PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (mem != MAP_FAILED)
            atomic_store_release(&table->entries,
                                 (struct handle_entry *)mem); /* to handles_find() */
    }
    struct handle_entry *e = table->entries ? find(table->entries, handle, true) : NULL;
    if (e && (e->handle || table->n < MAX_ENTRIES)) {
        before = e->value;
        table->n += !e->handle;
        atomic_store_release(&e->value, value);   /* to handles_find() */
        atomic_store_release(&e->handle, handle); /* the same */
    }
    pthread_mutex_unlock(&table->lock);
    return before;
}

void handles_each(struct handles *table, void (*fn)(const void *handle, void *value, void *ctx),
                  void *ctx)
{
    struct handle_entry *entries = atomic_load_acquire(&table->entries);
    for (uint32_t i = 0; entries && i < TABLE_SIZE; i++) {
        const void *handle = atomic_load_acquire(&entries[i].handle);
        void *value = handle ? atomic_load_acquire(&entries[i].value) : NULL;
        if (value)
            fn(handle, value, ctx);
    }
}
