/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A table from driver handles to what we keep for them. Readers take no lock and make no call. It grows with what is
 * kept; a value that is taken away leaves its place to whatever comes next.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct handle_entry {
    const void
        *handle; /* released by handles_set(), acquired by handles_find(); NULL: never used */
    void *value; /* the same; NULL: nothing is kept, the place is free */
};

/* Never unmapped: a reader may be in it. All that were outgrown take less room than the last. */
struct handle_slots {
    uint32_t bits; /* 2^bits entries */
    struct handle_entry entries[];
};

struct handles {
    struct handle_slots
        *slots; /* mapped at the first handles_set(); released there, acquired by readers */
    uint32_t n; /* values kept; under the lock */
    pthread_mutex_t lock; /* writers */
};

#define HANDLES_INIT                                                                               \
    {                                                                                              \
        .lock = PTHREAD_MUTEX_INITIALIZER                                                          \
    }

/* NULL: nothing is kept for @handle. Thread: any. */
void *handles_find(const struct handles *table, const void *handle);

/**
 * handles_set() - keep @value (NULL: nothing any more) for @handle
 * Thread: any. Return: what was kept before, to be freed by the caller where nobody may look at it;
 * @value itself if there is no memory to keep it, so that the caller does without.
 */
void *handles_set(struct handles *table, const void *handle, void *value);

/* Calls @fn for all that is kept; it may call handles_set(). Thread: any. */
void handles_each(struct handles *table, void (*fn)(const void *handle, void *value, void *ctx),
                  void *ctx);
