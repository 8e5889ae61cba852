/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/sites/forwards.h"

#include "core/any.h"
#include "core/grow.h"
#include "core/sorted.h"

#include <stdlib.h>
#include <string.h>

#define LAYERS_BACK 2 /* a step back by so many layers begins another forward */

/* What one launch says of rows beyond doubt. */
struct witness {
    uint32_t launch;
    uint32_t *rows, *votes; /* and how many places say each */
    uint32_t n, room;
    int lowest, highest; /* layers */
};

/* ------------------------------------------------------------------------- what a launch says */

/* Hits at one place: [from, to). Those much worse than the best say nothing. */
static float best_of(const struct hits *hits, size_t from, size_t to)
{
    float best = hits->at[from].error;
    for (size_t i = from; i < to; i++)
        best = hits->at[i].error < best ? hits->at[i].error : best;
    return best;
}

static size_t place_end(const struct hits *hits, size_t from)
{
    size_t to = from;
    while (to < hits->n && hits->at[to].launch == hits->at[from].launch &&
           hits->at[to].address == hits->at[from].address)
        to++;
    return to;
}

static int add_row(struct witness *w, uint32_t row, uint32_t votes)
{
    size_t room = w->room, room_votes = w->room;
    for (uint32_t i = 0; i < w->n; i++)
        if (w->rows[i] == row) {
            w->votes[i] += votes;
            return 0;
        }
    if (w->n == FORWARDS_MAX_ROWS || grow((void **)&w->rows, w->n, &room, sizeof *w->rows, 16) ||
        grow((void **)&w->votes, w->n, &room_votes, sizeof *w->votes, 16))
        return -ENOMEM;
    w->room = (uint32_t)room;
    w->votes[w->n] = votes;
    w->rows[w->n++] = row;
    return 0;
}

static void witness_deinit(struct witness *w)
{
    free(w->rows);
    free(w->votes);
}

/* A place counts where all that it may be is of one row. */
static int take_place(const struct probe *p, const struct hits *hits, size_t from, size_t to,
                      float worst, struct witness *w)
{
    float limit = 2 * best_of(hits, from, to) + 1e-3f;
    const struct hit *best = NULL;
    if (best_of(hits, from, to) > worst)
        return 0;
    for (size_t i = from; i < to; i++) {
        const struct hit *h = &hits->at[i];
        if (h->error > limit)
            continue;
        if (best && best->row != h->row)
            return 0;
        best = !best || h->error < best->error ? h : best;
    }
    int layer = p->ref->tensors[best->tensor].layer;
    if (layer != REF_NO_LAYER) {
        w->lowest = layer < w->lowest ? layer : w->lowest;
        w->highest = layer > w->highest ? layer : w->highest;
    }
    return add_row(w, best->row, 1);
}

/* ------------------------------------------------------------------------- one after the other */

static bool shares_row(const struct witness *a, const uint32_t *rows, uint32_t n)
{
    for (uint32_t i = 0; i < a->n; i++)
        for (uint32_t j = 0; j < n; j++)
            if (a->rows[i] == rows[j])
                return true;
    return false;
}

/* The forward under way. */
struct under_way {
    struct witness rows; /* all so far */
    uint32_t first, last;
    bool any;
};

/* A row that few places speak for is a likeness. */
static void drop_likenesses(struct witness *w)
{
    uint32_t most = 0, n = 0;
    for (uint32_t i = 0; i < w->n; i++)
        most = w->votes[i] > most ? w->votes[i] : most;
    for (uint32_t i = 0; i < w->n; i++)
        if (4 * w->votes[i] >= most)
            w->rows[n++] = w->rows[i];
    w->n = n;
}

static int close_forward(struct under_way *u, struct forwards *out)
{
    if (!u->any)
        return 0;
    drop_likenesses(&u->rows);
    free(u->rows.votes);
    if (PUSH(out->at, out->n, out->room, 16,
             (struct forward){
                 .first = u->first, .last = u->last, .rows = u->rows.rows, .n_rows = u->rows.n }))
        return -ENOMEM;
    *u = (struct under_way){ .rows = { .highest = REF_NO_LAYER } };
    return 0;
}

static int add_witness(struct under_way *u, const struct witness *w, struct forwards *out)
{
    bool back = w->highest != REF_NO_LAYER && w->lowest + LAYERS_BACK <= u->rows.highest;
    if (u->any && (back || !shares_row(w, u->rows.rows, u->rows.n)) && close_forward(u, out))
        return -ENOMEM;
    if (!u->any)
        u->first = w->launch;
    u->any = true;
    u->last = w->launch;
    if (w->highest > u->rows.highest)
        u->rows.highest = w->highest;
    return FIRST(i, w->n, add_row(&u->rows, w->rows[i], w->votes[i]), -ENOMEM, 0);
}

static int segment(const struct probe *p, const struct hits *hits, struct forwards *out)
{
    struct under_way u = { .rows = { .highest = REF_NO_LAYER } };
    struct witness w = { 0 };
    float worst = probe_usual_error(hits);
    int r = 0;
    for (size_t i = 0; !r && i < hits->n;) {
        w = (struct witness){ .launch = hits->at[i].launch,
                              .rows = w.rows,
                              .votes = w.votes,
                              .room = w.room,
                              .lowest = 1 << 30,
                              .highest = REF_NO_LAYER };
        while (!r && i < hits->n && hits->at[i].launch == w.launch) {
            size_t to = place_end(hits, i);
            r = take_place(p, hits, i, to, worst, &w);
            i = to;
        }
        if (!r && w.n)
            r = add_witness(&u, &w, out);
    }
    if (!r)
        r = close_forward(&u, out);
    witness_deinit(&w);
    witness_deinit(&u.rows);
    return r;
}

/* ------------------------------------------------------------------------- rows in order */

int forward_row(const struct forward *f, uint32_t row)
{
    return FIRST(i, f->n_rows, f->rows[i] == row, (int)i, -1);
}

/*
 * Rows of the forward that hits [from, to) of one launch show as the tensor of @like, by address.
 * Return: how many; 0 where one of them may be at several places, as the same token twice in an embedding.
 */
static uint32_t rows_of(const struct activations *ref, const struct hits *hits, size_t from,
                        size_t to, const struct hit *like, const struct forward *f, uint32_t *rows)
{
    const struct ref_tensor *want = &ref->tensors[like->tensor];
    uint64_t last = 0;
    uint32_t n = 0;
    for (size_t i = from; i < to; i++) {
        const struct hit *h = &hits->at[i];
        const struct ref_tensor *t = &ref->tensors[h->tensor];
        if (t->site != want->site || t->layer != want->layer || h->dtype != like->dtype ||
            forward_row(f, h->row) < 0)
            continue;
        bool again = h->address == last;
        for (uint32_t k = 0; !again && k < n; k++)
            again = rows[k] == h->row;
        if (again)
            return 0;
        last = h->address;
        rows[n++] = h->row;
    }
    return n;
}

/* The order is that of the first tensor that shows all rows; where none does, that of the reference. */
static void order_rows(const struct activations *ref, const struct hits *hits, struct forward *f)
{
    uint32_t *rows = malloc((f->n_rows + 1) * sizeof *rows);
    qsort(f->rows, f->n_rows, sizeof *f->rows, order_u32);
    for (size_t i = 0; rows && i < hits->n;) {
        size_t to = i;
        while (to < hits->n && hits->at[to].launch == hits->at[i].launch)
            to++;
        bool within = hits->at[i].launch >= f->first && hits->at[i].launch <= f->last;
        for (size_t k = i; within && k < to && k < i + 8; k++)
            if (rows_of(ref, hits, i, to, &hits->at[k], f, rows) == f->n_rows) {
                memcpy(f->rows, rows, f->n_rows * sizeof *rows);
                i = hits->n;
                to = i;
            }
        i = to;
    }
    free(rows);
}

/* Does launch number @launch show a row of @f, whatever else it may be? */
static bool may_show(const struct hits *hits, uint32_t launch, const struct forward *f)
{
    size_t from = 0, to = hits->n;
    while (from < to) {
        size_t middle = (from + to) / 2;
        if (hits->at[middle].launch < launch)
            from = middle + 1;
        else
            to = middle;
    }
    for (; from < hits->n && hits->at[from].launch == launch; from++)
        if (forward_row(f, hits->at[from].row) >= 0)
            return true;
    return false;
}

/*
 * Between two forwards stand launches that leave a doubt: an embedding does not say where a token stands. They are of
 * the later forward from the first one on that may be of it; else of the one before.
 */
static void extend(const struct hits *hits, struct forwards *all, uint32_t n_launches)
{
    for (size_t i = 0; i <= all->n; i++) {
        struct forward *before = i ? &all->at[i - 1] : NULL, *f = i < all->n ? &all->at[i] : NULL;
        uint32_t end = f ? f->first : n_launches;
        for (uint32_t l = before ? before->last + 1 : 0; l < end; l++) {
            if (f && may_show(hits, l, f)) {
                f->first = l;
                break;
            }
            if (before && may_show(hits, l, before))
                before->last = l;
        }
    }
}

int forwards_find(const struct probe *p, const struct hits *hits, struct forwards *out)
{
    *out = (struct forwards){ 0 };
    int r = segment(p, hits, out);
    if (r) {
        forwards_deinit(out);
        return r;
    }
    for (size_t i = 0; i < out->n; i++)
        order_rows(p->ref, hits, &out->at[i]);
    extend(hits, out, (uint32_t)p->rec->n_launches);
    return 0;
}

void forwards_deinit(struct forwards *all)
{
    for (size_t i = 0; i < all->n; i++)
        free(all->at[i].rows);
    free(all->at);
    *all = (struct forwards){ 0 };
}
