/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A table from driver handles to what we keep for them. Readers take no lock and make no call; the
 * table never moves, and a value that is taken away leaves its place for the handle's next life.
 */
#ifndef PRELOAD_BASE_HANDLES_H
#define PRELOAD_BASE_HANDLES_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct handle_entry {
    const void *handle; /* released by handles_set(), acquired by handles_find(); never removed */
    void *value;        /* the same; NULL: nothing is kept */
};

struct handles {
    struct handle_entry *entries; /* mapped at the first handles_set() */
    uint32_t n;
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
 * @value itself if the table is full, so that the caller does without.
 */
void *handles_set(struct handles *table, const void *handle, void *value);

/* Calls @fn for all that is kept; it may call handles_set(). Thread: any. */
void handles_each(struct handles *table, void (*fn)(const void *handle, void *value, void *ctx),
                  void *ctx);

#endif
