/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as what a chunk of the type TRACE or SUMS holds: the first byte says which. Nothing outside of them is read, and what is read is the same once it
 * was written again.
 */
#include "storage/ran.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* One of both. */
struct one {
    struct ran ran;
    struct ran_sum sum;
};

static bool sums; /* of which type the input is */

static void require(bool holds)
{
    if (!holds)
        abort();
}

static bool open_chunk(struct ran_reader *r, const uint8_t *meta, size_t n)
{
    return !(sums ? ran_open_sums : ran_open)(r, meta, n);
}

static bool next(struct ran_reader *r, struct one *one)
{
    const char *wrong;
    *one = (struct one){ 0 };
    return sums ? ran_next_sum(r, &one->sum, &wrong) : ran_next(r, &one->ran, &wrong);
}

static void write_again(struct ran_writer *w, const struct one *one)
{
    if (sums)
        ran_add_sum(w, &one->sum);
    else
        ran_add(w, &one->ran);
}

static bool same_name(const struct dmi_trace_shape *a, const char *name_a,
                      const struct dmi_trace_shape *b, const char *name_b)
{
    struct dmi_trace_shape like = *b;
    like.name_offset = a->name_offset;
    return !memcmp(a, &like, sizeof like) && !memcmp(name_a, name_b, a->name_bytes);
}

static bool same(const struct one *a, const struct one *b)
{
    const struct ran *r = &a->ran, *s = &b->ran;
    const struct ran_sum *p = &a->sum, *q = &b->sum;
    if (sums)
        return same_name(&p->shape, p->name, &q->shape, q->name) && p->begin_ns == q->begin_ns &&
               p->step == q->step && p->n == q->n && p->sum_ns == q->sum_ns &&
               p->most_ns == q->most_ns && p->bytes == q->bytes;
    return same_name(&r->shape, r->name, &s->shape, s->name) && r->begin_ns == s->begin_ns &&
           r->end_ns == s->end_ns && r->correlation == s->correlation && r->graph == s->graph &&
           r->node == s->node && r->step == s->step && r->bytes == s->bytes &&
           r->place.site == s->place.site && r->place.layer == s->place.layer;
}

/* @again: the bytes of the input's records, up to the first wrong one. */
static void compare(const uint8_t *bytes, size_t n, const struct text *again)
{
    struct ran_reader r, s;
    struct one a, b;
    require(open_chunk(&r, bytes, n) && open_chunk(&s, (const uint8_t *)again->data, again->n));
    while (next(&s, &b))
        require(next(&r, &a) && same(&a, &b));
    require(s.next == s.head.n_records);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct ran_writer w = { 0 };
    struct ran_reader r;
    struct text again = { 0 };
    struct one one;
    uint8_t *bytes = n ? malloc(n) : NULL; /* its end is where reading must stop */
    if (!bytes)
        return 0;
    memcpy(bytes, data, n);
    sums = *bytes & 1;
    bool opened = open_chunk(&r, bytes + 1, n - 1);
    while (opened && next(&r, &one))
        write_again(&w, &one);
    if (opened && ran_meta(&w, &again))
        compare(bytes + 1, n - 1, &again);
    text_deinit(&again);
    ran_deinit(&w);
    free(bytes);
    return 0;
}
