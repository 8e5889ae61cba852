/* SPDX-License-Identifier: Apache-2.0 */
#include "cupti/aggregate.h"

#include "core/grow.h"
#include "core/sorted.h"
#include "cupti/layouts.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------- the sum of a name */

static bool is_alike(const struct aggregate_sum *a, const struct aggregate_sum *b)
{
    return a->name == b->name && a->kind == b->kind && a->how == b->how && a->device == b->device;
}

static uint64_t hash_of(const struct aggregate_sum *sum)
{
    uint64_t hash = ((uintptr_t)sum->name >> 4 ^ sum->kind ^ (uint64_t)sum->how << 8 ^
                     (uint64_t)sum->device << 16) *
                    0x9e3779b97f4a7c15u;
    return hash >> 32;
}

/* NULL: no memory. */
static struct aggregate_sum *sum_like(struct aggregate *a, const struct aggregate_sum *like)
{
    if (!HASHED_MAKE_ROOM(&a->by_hash, a->n, i, hash_of(&a->sums[i])))
        return NULL;
    uint32_t *place = HASHED_FIND(&a->by_hash, hash_of(like), i, is_alike(&a->sums[i], like));
    if (*place)
        return &a->sums[*place - 1];
    if (GROW(a->sums, a->n, a->room))
        return NULL;
    a->sums[a->n] = (struct aggregate_sum){
        .kind = like->kind, .how = like->how, .device = like->device, .name = like->name
    };
    *place = (uint32_t)++a->n;
    return &a->sums[a->n - 1];
}

static uint32_t most(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static void add_to(struct aggregate_sum *to, const struct aggregate_sum *from)
{
    to->static_shared = most(to->static_shared, from->static_shared);
    to->dynamic_shared = most(to->dynamic_shared, from->dynamic_shared);
    to->registers = most(to->registers, from->registers);
    to->n += from->n;
    to->sum_ns += from->sum_ns;
    to->most_ns = from->most_ns > to->most_ns ? from->most_ns : to->most_ns;
    to->bytes += from->bytes;
}

/* ------------------------------------------------------------------------- when something ran */

/* Records of a stream follow one another: the last span grows, mostly, or the next one begins after it. */
static void add_span(struct aggregate *a, uint64_t begin, uint64_t end)
{
    struct aggregate_span *last = a->n_spans ? &a->spans[a->n_spans - 1] : NULL;
    if (last && begin >= last->begin_ns && begin <= last->end_ns) {
        last->end_ns = end > last->end_ns ? end : last->end_ns;
        return;
    }
    a->unsorted |= last && begin < last->begin_ns;
    a->spans[a->n_spans++] = (struct aggregate_span){ begin, end };
}

static int by_begin(const void *pa, const void *pb)
{
    const struct aggregate_span *a = pa, *b = pb;
    ORDER(a, b, begin_ns);
    return 0;
}

struct aggregate_busy aggregate_busy(struct aggregate *a)
{
    if (a->unsorted)
        SORT(a->spans, a->n_spans, by_begin);
    a->unsorted = false;
    struct aggregate_busy b = { .begin_ns = a->spans[0].begin_ns, .end_ns = a->spans[0].begin_ns };
    for (size_t i = 0; i < a->n_spans; i++) {
        const struct aggregate_span *s = &a->spans[i];
        uint64_t from = s->begin_ns > b.end_ns ? s->begin_ns : b.end_ns;
        if (from - b.end_ns > b.longest_ns)
            b.longest_ns = from - b.end_ns;
        if (s->end_ns <= b.end_ns)
            continue;
        b.busy_ns += s->end_ns - from;
        b.end_ns = s->end_ns;
    }
    return b;
}

/* ------------------------------------------------------------------------- records */

bool aggregate_add(struct aggregate *a, const struct records_event *e)
{
    bool kernel = e->kind == LAYOUTS_KERNEL;
    uint64_t ns = e->end_ns - e->begin_ns;
    const struct aggregate_sum one = { .kind = e->kind,
                                       .how = e->how,
                                       .device = e->device,
                                       .static_shared = e->static_shared,
                                       .dynamic_shared = e->dynamic_shared,
                                       .registers = e->registers,
                                       .name = kernel ? e->name : NULL,
                                       .n = 1,
                                       .sum_ns = ns,
                                       .most_ns = ns,
                                       .bytes = e->bytes };
    struct aggregate_sum *sum = sum_like(a, &one);
    if (!sum || GROW(a->spans, a->n_spans, a->spans_room))
        return false;
    add_to(sum, &one);
    add_span(a, e->begin_ns, e->end_ns);
    a->n_records++;
    return true;
}

bool aggregate_merge(struct aggregate *a, const struct aggregate_sum *from)
{
    struct aggregate_sum *sum = sum_like(a, from);
    if (!sum)
        return false;
    add_to(sum, from);
    a->n_records += from->n;
    return true;
}

static int by_time(const void *pa, const void *pb)
{
    const struct aggregate_sum *a = pa, *b = pb;
    ORDER(b, a, sum_ns);
    ORDER(b, a, n);
    return 0;
}

void aggregate_order(struct aggregate *a)
{
    SORT(a->sums, a->n, by_time);
}

void aggregate_fold(struct aggregate *a, size_t most)
{
    struct aggregate_sum folded = { 0 };
    size_t n = 0, kernels = 0;
    aggregate_order(a);
    for (size_t i = 0; i < a->n; i++) {
        const struct aggregate_sum *s = &a->sums[i];
        bool counts = s->kind == LAYOUTS_KERNEL && !records_is_own(s->name);
        if (!s->n) /* there was no memory for its record */
            continue;
        if (!counts || kernels++ < most) {
            a->sums[n++] = *s;
            continue;
        }
        if (!folded.n)
            folded.device = s->device;
        add_to(&folded, s);
    }
    if (folded.n)
        a->sums[n++] = folded; /* one at least was left out before */
    a->n = n;
}

void aggregate_clear(struct aggregate *a)
{
    a->n = a->n_spans = a->n_records = 0;
    a->unsorted = false;
    hashed_clear(&a->by_hash);
}

void aggregate_deinit(struct aggregate *a)
{
    free(a->sums);
    hashed_deinit(&a->by_hash);
    free(a->spans);
    *a = (struct aggregate){ 0 };
}
