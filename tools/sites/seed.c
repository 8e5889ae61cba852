/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/sites/seed.h"

#include "core/grow.h"
#include "core/sorted.h"

#include <dmi/dtype.h>

#include <math.h>
#include <stdlib.h>

#define MAX_TRIES   2048u /* layouts of one tensor in one launch */
#define MAX_GUESSES 64u   /* of these */

/* Hits of one tensor in one launch, as one type. */
struct seed {
    const struct probe *probe;
    const struct forwards *forwards;
    uint32_t forward;
    bool turned;
    const struct sight_rows *rows;
    const int *item_of; /* by the hits' row; -1: it is none */
    uint32_t n_items;   /* rows, or elements if it is turned */
    const struct hit *hits;
    size_t n_hits;
    struct guesses *out;
    size_t first; /* of its guesses in @out */
    uint32_t tries;
};

static int seed_order(const void *pa, const void *pb)
{
    const struct hit *a = pa, *b = pb;
    ORDER(a, b, launch);
    ORDER(a, b, tensor);
    ORDER(a, b, dtype);
    return a->address < b->address ? -1 : a->address > b->address;
}

static const struct ref_tensor *tensor_of(const struct seed *s)
{
    return &s->probe->ref->tensors[s->hits->tensor];
}

/* Bytes from item to item if nothing lies between them. */
static int64_t packed(const struct seed *s)
{
    return (int64_t)dmi_dtype_bytes(s->hits->dtype) *
           (s->turned ? s->rows->n : tensor_of(s)->width);
}

static struct layout layout_of(const struct seed *s, uint64_t address, int64_t apart)
{
    uint32_t width = tensor_of(s)->width, dtype = s->hits->dtype;
    struct layout l = { .dtype = dtype, .scale = 1, .address = address, .chunk = width };
    l.n_chunks = 1;
    l.row_stride = apart;
    if (s->turned) {
        l.chunk = 1;
        l.n_chunks = width;
        l.chunk_stride = apart;
        l.row_stride = dmi_dtype_bytes(dtype);
    }
    return l;
}

static uint32_t occ_of(const struct seed *s)
{
    const struct rec_launch *all = s->probe->rec->launches;
    uint32_t occ = 0;
    for (uint32_t l = s->forwards->at[s->forward].begin; l < s->hits->launch; l++)
        occ += all[l].head.kernel == all[s->hits->launch].head.kernel;
    return occ;
}

static int add_guess(struct seed *s, const struct layout *layout, uint32_t pointer)
{
    const struct rec_launch *l = &s->probe->rec->launches[s->hits->launch];
    struct guess g = { .kind = s->forwards->at[s->forward].kind,
                       .site = tensor_of(s)->site,
                       .layer = tensor_of(s)->layer,
                       .kernel = l->head.kernel,
                       .occ = occ_of(s),
                       .offset = l->pointers[pointer].offset,
                       .distance = (int64_t)(layout->address - l->pointers[pointer].address),
                       .layout = *layout,
                       .turned = s->turned && layout->chunk_stride == packed(s),
                       .last = s->rows->last };
    for (size_t i = s->first; i < s->out->n; i++)
        if (guess_equal(&s->out->at[i], &g))
            return 0;
    if (grow((void **)&s->out->at, s->out->n, &s->out->room, sizeof g, 64))
        return -ENOMEM;
    s->out->at[s->out->n++] = g;
    return 0;
}

/* Item number @item at @hit, and the others @apart from it. */
static int try_layout(struct seed *s, const struct hit *hit, int item, int64_t apart)
{
    struct layout l = layout_of(s, hit->address - (uint64_t)(apart * item), apart);
    struct subject subject = { tensor_of(s)->site, tensor_of(s)->layer, s->rows->at, s->rows->n,
                               REC_AFTER(hit->launch) };
    uint32_t pointer = sight_pointer(&s->probe->rec->launches[hit->launch], l.address);
    s->tries++;
    if (pointer == UINT32_MAX || !isfinite(layout_error(s->probe, &l, &subject)))
        return 0;
    return add_guess(s, &l, pointer);
}

static bool is_enough(const struct seed *s)
{
    return s->tries >= MAX_TRIES || s->out->n - s->first >= MAX_GUESSES;
}

/* ------------------------------------------------------------------------- pairs */

static int item_of(const struct seed *s, size_t hit)
{
    return s->item_of[s->hits[hit].row];
}

/* The item that was seen least often, but for @other; -1: there is none. */
static int rarest(const struct seed *s, const uint32_t *seen, int other)
{
    int best = -1;
    for (uint32_t i = 0; i < s->n_items; i++)
        if (seen[i] && (int)i != other && (best < 0 || seen[i] < seen[best]))
            best = (int)i;
    return best;
}

static int try_packed(struct seed *s, int item)
{
    int r = 0;
    for (size_t i = 0; !r && i < s->n_hits && !is_enough(s); i++)
        if (item_of(s, i) == item)
            r = try_layout(s, &s->hits[i], item, packed(s));
    return r;
}

static int try_pairs(struct seed *s, int a, int b)
{
    int r = 0;
    for (size_t i = 0; i < s->n_hits; i++)
        for (size_t k = 0; !r && item_of(s, i) == a && k < s->n_hits && !is_enough(s); k++) {
            int64_t apart = (int64_t)(s->hits[k].address - s->hits[i].address);
            if (item_of(s, k) == b && apart % (b - a) == 0 && apart / (b - a) > packed(s) &&
                apart / (b - a) % (int64_t)dmi_dtype_bytes(s->hits->dtype) == 0)
                r = try_layout(s, &s->hits[i], a, apart / (b - a));
        }
    return r;
}

static int suggest(struct seed *s)
{
    uint32_t *seen = calloc(s->n_items + 1, sizeof *seen);
    int r = seen ? 0 : -ENOMEM;
    s->first = s->out->n;
    s->tries = 0;
    for (size_t i = 0; seen && i < s->n_hits; i++)
        if (item_of(s, i) >= 0)
            seen[item_of(s, i)]++;
    int a = seen ? rarest(s, seen, -1) : -1, b = a < 0 ? -1 : rarest(s, seen, a);
    if (!r && a >= 0)
        r = try_packed(s, a);
    if (!r && b >= 0)
        r = try_pairs(s, a, b);
    free(seen);
    return r;
}

/* ------------------------------------------------------------------------- all hits */

static bool together(const struct hit *a, const struct hit *b)
{
    return a->launch == b->launch && a->tensor == b->tensor && a->dtype == b->dtype;
}

static int suggest_all(struct seed *s, const struct hits *hits)
{
    const struct probe *p = s->probe;
    int r = 0;
    for (size_t i = 0, to; !r && i < hits->n; i = to) {
        for (to = i; to < hits->n && together(&hits->at[to], &hits->at[i]);)
            to++;
        s->hits = &hits->at[i];
        s->n_hits = to - i;
        if (s->turned)
            s->n_items = tensor_of(s)->width;
        if (s->rows->last || sight_has_rows(p, tensor_of(s)->site, tensor_of(s)->layer, s->rows))
            r = suggest(s);
    }
    return r;
}

/* Which of @rows each of the forward's rows is; of elements, each is itself. */
static int *number_items(const struct forward *f, const struct sight_rows *rows, bool turned)
{
    uint32_t n = turned ? PROBE_VALUES : f->n_rows, at = 0;
    int *items = malloc((n + 1) * sizeof *items);
    for (uint32_t i = 0; items && i < n; i++) {
        bool is = turned || (at < rows->n && rows->at[at] == f->rows[i]);
        items[i] = turned ? (int)i : is ? (int)at++ : -1;
    }
    return items;
}

int seed_find(const struct probe *p, const struct forwards *all, uint32_t forward, bool turned,
              struct hits *hits, struct guesses *out)
{
    const struct forward *f = &all->at[forward];
    int r = 0;
    if (hits->n)
        qsort(hits->at, hits->n, sizeof *hits->at, seed_order);
    for (int last = 0; !r && last < (turned ? 1 : 2); last++) {
        struct sight_rows rows = { 0 };
        r = sight_rows(p, f, last, &rows);
        int *items = r ? NULL : number_items(f, &rows, turned);
        bool same = last && rows.n == f->n_rows;
        struct seed s = { .probe = p,
                          .forwards = all,
                          .forward = forward,
                          .turned = turned,
                          .rows = &rows,
                          .item_of = items,
                          .n_items = rows.n,
                          .out = out };
        if (!same)
            r = items ? suggest_all(&s, hits) : -ENOMEM;
        free(items);
        free(rows.at);
    }
    return r;
}
