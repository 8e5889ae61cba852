/* SPDX-License-Identifier: Apache-2.0 */
#include "analyze/operand.h"

#include "analyze/kernel.h"
#include "core/cleanup.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define ROWS_AT_ONCE 256

static void rotate(const struct plan_layer *l, int64_t position, size_t n, size_t width, size_t dim,
                   float *rows)
{
    for (size_t i = 0; i < n; i++)
        rope_turn(l->about.rope, l->frequencies, position + (int64_t)i, width / dim, dim,
                  rows + i * width);
}

int operand_read(struct err *err, const struct plan_layer *l, const struct sources *sources,
                 int64_t position, size_t n, size_t width, size_t dim, float *out)
{
    while (n) {
        uint64_t some;
        int r = 0;
        const struct source *s = sources_at(sources, position, n, &some);
        if (s)
            r = source_read(err, s, position, some, out);
        else
            memset(out, 0, some * width * sizeof *out);
        if (r)
            return r;
        if (s && s->bare && l->about.rope)
            rotate(l, position, some, width, dim, out);
        out += some * width;
        position += (int64_t)some;
        n -= some;
    }
    return 0;
}

static bool has(const struct operand_block *b, const struct plan_layer *l, int64_t first, size_t n)
{
    return b->layer == l && b->first == first && b->n == n;
}

/* Rows of all KV heads, as they are read, into panels of each. @at: of the first row, in the block */
static void pack_keys(const struct plan *p, const float *rows, size_t at, size_t n, size_t room,
                      float *data)
{
    for (size_t h = 0; h < p->n_kv_heads; h++)
        for (size_t j = 0; j < n; j++) {
            const float *row = rows + (j * p->n_kv_heads + h) * p->dim;
            size_t key = at + j;
            float *to =
                data + (h * room + key / KERNEL_LANES * KERNEL_LANES) * p->dim + key % KERNEL_LANES;
            for (size_t i = 0; i < p->dim; i++)
                to[i * KERNEL_LANES] = row[i];
        }
}

int operand_keys(struct err *err, const struct plan *p, const struct plan_layer *l, int64_t first,
                 size_t n, size_t room, struct operand_block *b)
{
    size_t width = (size_t)p->n_kv_heads * p->dim;
    if (has(b, l, first, n))
        return 0;
    _cleanup_(freep) float *rows = malloc(ROWS_AT_ONCE * width * sizeof *rows);
    if (!rows)
        return err_set(err, -ENOMEM, "no memory for keys");
    b->layer = NULL;
    memset(b->data, 0, room * width * sizeof *b->data);
    for (size_t at = 0; at < n; at += ROWS_AT_ONCE) {
        size_t some = n - at < ROWS_AT_ONCE ? n - at : ROWS_AT_ONCE;
        int r = operand_read(err, l, &l->k, first + (int64_t)at, some, width, p->dim, rows);
        if (r)
            return r;
        pack_keys(p, rows, at, some, room, b->data);
    }
    b->layer = l, b->first = first, b->n = n;
    return 0;
}

int operand_values(struct err *err, const struct plan *p, const struct plan_layer *l, int64_t first,
                   size_t n, size_t room, size_t value_dim, struct operand_block *b)
{
    size_t width = (size_t)p->n_kv_heads * p->value_dim;
    if (has(b, l, first, n))
        return 0;
    _cleanup_(freep) float *rows = malloc(ROWS_AT_ONCE * width * sizeof *rows);
    if (!rows)
        return err_set(err, -ENOMEM, "no memory for values");
    b->layer = NULL;
    memset(b->data, 0, room * p->n_kv_heads * value_dim * sizeof *b->data);
    for (size_t at = 0; at < n; at += ROWS_AT_ONCE) {
        size_t some = n - at < ROWS_AT_ONCE ? n - at : ROWS_AT_ONCE;
        int r = operand_read(err, l, &l->v, first + (int64_t)at, some, width, p->value_dim, rows);
        if (r)
            return r;
        for (size_t h = 0; h < p->n_kv_heads; h++)
            for (size_t j = 0; j < some; j++)
                memcpy(b->data + (h * room + at + j) * value_dim,
                       rows + (j * p->n_kv_heads + h) * p->value_dim, p->value_dim * sizeof *rows);
    }
    b->layer = l, b->first = first, b->n = n;
    return 0;
}
