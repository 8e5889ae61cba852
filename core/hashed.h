/* SPDX-License-Identifier: Apache-2.0 */
/* Where the items of an array are, by hash: a table in open addressing, never more than half full. It is one thread's. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Accepts being zeroed. */
struct hashed {
    uint32_t *all; /* one more than an item's index, 0: free */
    size_t n;      /* 0, or a power of two */
};

/* The table has room for item @n. If not: hashed_grow(), then every item is to be placed again. */
static inline bool hashed_has_room(const struct hashed *p, size_t n)
{
    return 2 * (n + 1) <= p->n;
}

/* Twice as many places, all of them free. Return: false without memory: they are as they were. */
static inline bool hashed_grow(struct hashed *p)
{
    size_t n = p->n ? 2 * p->n : 128;
    uint32_t *all = calloc(n, sizeof *all);
    if (!all)
        return false;
    free(p->all);
    *p = (struct hashed){ all, n };
    return true;
}

/* All places are free. */
static inline void hashed_clear(struct hashed *p)
{
    if (p->n)
        memset(p->all, 0, p->n * sizeof *p->all);
}

/* Frees the table. */
static inline void hashed_deinit(struct hashed *p)
{
    free(p->all);
    *p = (struct hashed){ 0 };
}

/*
 * Makes room for item @n of those that the table has. @hash: an expression in @i, which it declares: the hash of item @i.
 * Return: false without memory: the table is as it was.
 */
#define HASHED_MAKE_ROOM(table, n, i, hash)                                                        \
    ({                                                                                             \
        struct hashed *_t = (table);                                                               \
        bool _grows = !hashed_has_room(_t, (n)), _has = !_grows || hashed_grow(_t);                \
        for (size_t i = 0; _grows && _has && i < (n); i++)                                         \
            *HASHED_FIND(_t, hash, _j, false) = (uint32_t)i + 1;                                   \
        _has;                                                                                      \
    })

/* The place of an item with this hash: its own, or a free one. @is_it: an expression in @i, which it declares: is item @i the one? */
#define HASHED_FIND(table, hash, i, is_it)                                                         \
    ({                                                                                             \
        const struct hashed *_p = (table);                                                         \
        size_t _at = (size_t)(hash) & (_p->n - 1);                                                 \
        for (; _p->all[_at]; _at = (_at + 1) & (_p->n - 1)) {                                      \
            size_t i = _p->all[_at] - 1;                                                           \
            (void)i;                                                                               \
            if (is_it)                                                                             \
                break;                                                                             \
        }                                                                                          \
        &_p->all[_at];                                                                             \
    })
