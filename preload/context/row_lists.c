/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/context/row_lists.h"

#include "core/atomic.h"
#include "kernels/ring.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct row_list *list_of(struct row_lists *all, uint64_t number)
{
    return &all->lists[number % ROW_LISTS_MAX];
}

int row_lists_init(struct row_lists *all, void *map, uint32_t at, uint32_t n_bytes)
{
    uint32_t first = at / sizeof(uint32_t);
    *all = (struct row_lists){ .map = (uint32_t *)map + first,
                               .n_map = n_bytes / sizeof(uint32_t),
                               .first = first,
                               .reservation = 1 };
    all->lists = calloc(ROW_LISTS_MAX, sizeof *all->lists);
    return all->lists ? 0 : -ENOMEM;
}

void row_lists_deinit(struct row_lists *all)
{
    free(all->lists);
    *all = (struct row_lists){ 0 };
}

/* The newest first. Those of an earlier step are not looked through: a thread that lags has its lists written anew. */
static bool find(struct row_lists *all, uint64_t step, const uint32_t *rows, uint32_t n,
                 uint64_t *number)
{
    for (uint64_t i = all->head; i-- > all->tail;) {
        const struct row_list *l = list_of(all, i);
        if (l->step < step)
            return false;
        if (l->step == step && l->from == rows && l->n == n) {
            *number = i;
            return true;
        }
    }
    return false;
}

/* Return: false while the oldest list may still be used. */
static bool free_oldest(struct row_lists *all, uint64_t tail)
{
    const struct row_list *l = list_of(all, all->tail);
    if (all->tail == all->head || l->held_by == all->reservation || l->until > tail)
        return false;
    all->tail++;
    return true;
}

bool row_lists_are_pressed(const struct row_lists *all)
{
    return atomic_load_relaxed(&all->pressed);
}

static void note_pressure(struct row_lists *all)
{
    uint64_t used = list_of(all, all->head - 1)->end - list_of(all, all->tail)->begin;
    atomic_store_relaxed(&all->pressed,
                         all->head - all->tail > ROW_LISTS_MAX / 2 || used > all->n_map / 2);
}

/* Where @n entries would begin, as a running count: a list never wraps around the map's end. */
static uint64_t next_begin(const struct row_lists *all, uint32_t n)
{
    if (all->tail == all->head)
        return 0;
    uint64_t end = all->lists[(all->head - 1) % ROW_LISTS_MAX].end, at = end % all->n_map;
    return at + n <= all->n_map ? end : end + all->n_map - at;
}

static bool has_room(struct row_lists *all, uint32_t n)
{
    if (all->tail == all->head)
        return true;
    return all->head - all->tail < ROW_LISTS_MAX &&
           next_begin(all, n) + n - list_of(all, all->tail)->begin <= all->n_map;
}

/* Is there nothing but what the reservation under way needs beside? Then it waits for nobody. */
static bool only_held(struct row_lists *all)
{
    bool only = true;
    for (uint64_t i = all->tail; i < all->head && only; i++)
        only = list_of(all, i)->held_by == all->reservation;
    return only;
}

int row_lists_place(struct row_lists *all, uint64_t tail, uint64_t step, const uint32_t *rows,
                    uint32_t n, uint64_t *list)
{
    if (n > all->n_map)
        return RING_E_TOO_LARGE;
    if (!find(all, step, rows, n, list)) {
        while (free_oldest(all, tail))
            ;
        if (!has_room(all, n))
            return only_held(all) ? RING_E_TOO_LARGE : RING_E_FULL;
        uint64_t begin = next_begin(all, n);
        *list = all->head++;
        *list_of(all, *list) = (struct row_list){ .step = step,
                                                  .from = rows,
                                                  .n = n,
                                                  .at = (uint32_t)(begin % all->n_map),
                                                  .begin = begin,
                                                  .end = begin + n };
        /* kernels launched from now on see it, as they see all that the host wrote before */
        memcpy(all->map + list_of(all, *list)->at, rows, n * sizeof *rows);
        note_pressure(all);
    }
    list_of(all, *list)->held_by = all->reservation;
    return 0;
}

void row_lists_use(struct row_lists *all, uint64_t list, uint64_t user)
{
    struct row_list *l = list_of(all, list);
    if (l->until < user + 1)
        l->until = user + 1;
}

void row_lists_settle(struct row_lists *all)
{
    all->reservation++;
}
