/* SPDX-License-Identifier: Apache-2.0 */
#include "analyze/operand.h"

#include "analyze/kernel.h"
#include "core/cleanup.h"
#include "core/err.h"

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
        const struct tensor_source *s = sources_at(sources, position, n, &some);
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

bool operand_has(const struct operand_block *b, const struct operand_block *wanted)
{
    return b->layer == wanted->layer && b->first_head == wanted->first_head &&
           b->n_heads == wanted->n_heads && b->first == wanted->first && b->n == wanted->n;
}

void operand_becomes(struct operand_block *b, const struct operand_block *wanted)
{
    float *data = b->data;
    *b = *wanted;
    b->data = data;
}

/* What copies rows of all KV heads, as they are read, into a block. @at: of the first row, in the block */
typedef void pack_rows(const struct plan *p, const struct operand_block *wanted, const float *rows,
                       size_t at, size_t n, size_t room, size_t dim, float *data);

static void pack_keys(const struct plan *p, const struct operand_block *wanted, const float *rows,
                      size_t at, size_t n, size_t room, size_t dim, float *data)
{
    for (size_t h = 0; h < wanted->n_heads; h++)
        for (size_t j = 0; j < n; j++) {
            const float *row = rows + (j * p->n_kv_heads + wanted->first_head + h) * dim;
            size_t key = at + j;
            float *to =
                data + (h * room + key / KERNEL_LANES * KERNEL_LANES) * dim + key % KERNEL_LANES;
            for (size_t i = 0; i < dim; i++)
                to[i * KERNEL_LANES] = row[i];
        }
}

static void pack_values(const struct plan *p, const struct operand_block *wanted, const float *rows,
                        size_t at, size_t n, size_t room, size_t dim, float *data)
{
    for (size_t h = 0; h < wanted->n_heads; h++)
        for (size_t j = 0; j < n; j++)
            memcpy(data + (h * room + at + j) * dim,
                   rows + (j * p->n_kv_heads + wanted->first_head + h) * p->value_dim,
                   p->value_dim * sizeof *rows);
}

/* @dim: of a row of the source; @room_dim: of one in the block */
static int fill(struct err *err, const struct plan *p, const struct operand_block *wanted,
                const struct sources *sources, size_t dim, size_t room, size_t room_dim,
                pack_rows *pack, struct operand_block *b)
{
    size_t width = (size_t)p->n_kv_heads * dim;
    _cleanup_(freep) float *rows = malloc(ROWS_AT_ONCE * width * sizeof *rows);
    if (!rows)
        return err_set(err, -ENOMEM, "no memory for keys and values");
    b->layer = NULL;
    for (size_t at = 0; at < wanted->n; at += ROWS_AT_ONCE) {
        size_t some = wanted->n - at < ROWS_AT_ONCE ? wanted->n - at : ROWS_AT_ONCE;
        TRY(operand_read(err, wanted->layer, sources, wanted->first + (int64_t)at, some, width, dim,
                         rows));
        pack(p, wanted, rows, at, some, room, room_dim, b->data);
    }
    operand_becomes(b, wanted);
    return 0;
}

int operand_keys(struct err *err, const struct plan *p, const struct operand_block *wanted,
                 size_t room, struct operand_block *b)
{
    return fill(err, p, wanted, &wanted->layer->k, p->dim, room, p->dim, pack_keys, b);
}

int operand_values(struct err *err, const struct plan *p, const struct operand_block *wanted,
                   size_t room, size_t value_dim, struct operand_block *b)
{
    return fill(err, p, wanted, &wanted->layer->v, p->value_dim, room, value_dim, pack_values, b);
}
