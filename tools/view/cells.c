/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/view/cells.h"

#include "tools/view/document.h"

#define POOLED_CELLS 512 /* of a layer, where positions share cells */
#define HEAD_BYTES                                                                                 \
    400 /* of a map in the document, beside its arrays, at most; and for each layer */
#define LAYER_BYTES 12
#define MOST_CELLS  (UINT64_MAX / 64) /* whose bytes can be counted */

void cells_widen(struct cells *c, int64_t position)
{
    c->by_row |= position < 0;
    c->first = position < c->first ? position : c->first;
    c->end = position >= c->end ? position + 1 : c->end;
}

void cells_settle(struct cells *c, uint64_t most_rows)
{
    if (c->by_row || c->first > c->end) {
        c->first = 0;
        c->end = (int64_t)most_rows;
    }
}

static uint64_t cells_of(const struct cells *c, uint64_t per)
{
    return per ? ((uint64_t)(c->end - c->first) + per - 1) / per : 0;
}

static uint64_t cost_of(const struct cells *c, uint32_t n_floats, uint64_t per)
{
    uint64_t n;
    if (__builtin_mul_overflow(c->n_layers, cells_of(c, per), &n) || n > MOST_CELLS)
        return UINT64_MAX; /* positions are what a file says */
    return HEAD_BYTES + LAYER_BYTES * c->n_layers + n_floats * document_cost(4 * n) +
           document_cost(n);
}

static uint64_t per_of_pooled(const struct cells *c)
{
    return ((uint64_t)(c->end - c->first) + POOLED_CELLS - 1) / POOLED_CELLS;
}

/* The fewest positions a cell for which there is room, by powers of two. @room: beside what it has already. */
static uint64_t per_that_fits(const struct cells *c, uint32_t n_floats, uint64_t room)
{
    uint64_t per = 1;
    while (per < c->per && cost_of(c, n_floats, per) - cost_of(c, n_floats, c->per) > room)
        per *= 2;
    return per < c->per ? per : c->per;
}

uint64_t cells_choose(struct cells *const all[], size_t n_maps, uint32_t n_floats, uint64_t room,
                      uint64_t *n_out)
{
    uint64_t n_pooled = 0;
    *n_out = 0;
    for (size_t i = 0; i < n_maps; i++) {
        struct cells *c = all[i];
        uint64_t cost = cost_of(c, n_floats, per_of_pooled(c));
        bool fits = cost <= room;
        c->per = fits ? per_of_pooled(c) : 0;
        room -= fits ? cost : 0;
        *n_out += !fits;
    }
    for (size_t i = 0; i < n_maps; i++) {
        struct cells *c = all[i];
        uint64_t per = c->per ? per_that_fits(c, n_floats, room) : 0;
        room -= c->per ? cost_of(c, n_floats, per) - cost_of(c, n_floats, c->per) : 0;
        c->per = per;
        c->n = cells_of(c, per);
        n_pooled += per > 1;
    }
    return n_pooled;
}

size_t cells_at(const struct cells *c, uint64_t layer, int64_t position)
{
    if (!c->per || position < c->first || position >= c->end)
        return SIZE_MAX;
    return (size_t)(layer * c->n + (uint64_t)(position - c->first) / c->per);
}

size_t cells_all(const struct cells *c)
{
    return (size_t)(c->n_layers * c->n);
}
