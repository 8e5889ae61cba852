/* SPDX-License-Identifier: Apache-2.0 */
/* What chunks of steps, outcomes, changes and the trace hold, taken from their metadata. Each is checked; those that contradict themselves are left out. */
#include "core/cleanup.h"
#include "storage/reader/reader_private.h"
#include "storage/steps_pack.h"

#include <errno.h>
#include <stdlib.h>

/* Adds copies of an entry's spans, where theirs is another size than today's; else they are used as they lie there. */
static int widen_spans(struct reader_chunk *c, const uint8_t *entry, size_t *n, size_t *room)
{
    const struct dmi_step_entry *e = (const struct dmi_step_entry *)(const void *)entry;
    for (uint32_t i = 0; e->span_bytes != sizeof *c->spans && i < e->n_spans; i++) {
        if (GROW(c->spans, *n, *room))
            return -ENOMEM;
        parse_span(entry, i, &c->spans[(*n)++]);
    }
    return 0;
}

/* Once none of the copies moves any more. */
static void place_spans(struct reader_step *steps, size_t n_steps,
                        const struct dmi_span_entry *copies)
{
    for (size_t i = 0; i < n_steps; i++) {
        const struct dmi_step_entry *e = steps[i].entry;
        steps[i].spans = (const struct dmi_span_entry *)(e + 1);
        if (e->span_bytes == sizeof *copies || !e->n_spans)
            continue;
        steps[i].spans = copies;
        copies += e->n_spans;
    }
}

int reader_take_steps(struct reader_chunk *c, uint64_t n_meta, uint8_t *bytes, const char **wrong)
{
    _cleanup_(freep) uint8_t *owned = bytes;
    _cleanup_(freep) struct reader_step *steps = NULL;
    const char *first_wrong = NULL;
    size_t n_steps = 0, room = 0, n_spans = 0, spans_room = 0;
    uint64_t n = 0;
    for (uint64_t at = 0; at < n_meta; at += n) {
        int res = parse_step(bytes + at, n_meta - at, &n, wrong);
        if (!res && !*wrong)
            res =
                grow((void **)&steps, n_steps, &room, sizeof *steps, 1); /* most chunks have few */
        if (!res && !*wrong)
            res = widen_spans(c, bytes + at, &n_spans, &spans_room);
        if (res)
            return res;
        if (!*wrong)
            steps[n_steps++] = (struct reader_step){ .entry = (const void *)(bytes + at) };
        else if (!first_wrong)
            first_wrong = *wrong;
        if (!n)
            break;
    }
    place_spans(steps, n_steps, c->spans);
    *wrong = first_wrong;
    c->bytes = steal_ptr(owned);
    c->steps = steal_ptr(steps);
    c->n_held = n_steps;
    return 0;
}

int reader_take_packed_steps(struct reader_chunk *c, uint64_t n_meta, uint8_t *bytes,
                             const char **wrong)
{
    _cleanup_(freep) uint8_t *owned = bytes;
    uint8_t *steps = NULL;
    size_t n = 0;
    int res = steps_unpack(bytes, n_meta, &steps, &n, wrong);
    return res || *wrong ? res : reader_take_steps(c, n, steps, wrong);
}

static bool is_object(const char *json, size_t n)
{
    json_t *value = object_parse(json, n);
    json_decref(value);
    return value != NULL;
}

int reader_take_changes(struct reader_chunk *c, uint64_t n_meta, uint8_t *bytes, const char **wrong)
{
    _cleanup_(freep) uint8_t *owned = bytes;
    _cleanup_(freep) struct reader_noted *all = NULL;
    size_t n_all = 0, room = 0;
    uint64_t n;
    *wrong = NULL;
    for (uint64_t at = 0; at < n_meta; at += n) {
        struct reader_noted one;
        const char *what = parse_change(bytes + at, n_meta - at, &n, &one.at, &one.json);
        if (!what && !is_object(one.json, one.at.json_bytes))
            what = "a change is no JSON object";
        *wrong = *wrong ? *wrong : what;
        if (!n)
            break;
        if (what)
            continue;
        if (PUSH(all, n_all, room, 64, one))
            return -ENOMEM;
    }
    c->bytes = steal_ptr(owned);
    c->noted_changes = steal_ptr(all);
    c->n_held = n_all;
    return 0;
}

/*
 * A table of entries, which are held as c->@name. @least: bytes of an entry; @parse: takes entry i of the view v into *one, and gives what is
 * wrong with it.
 */
#define TAKE_TABLE(name, least, parse)                                                             \
    int reader_take_##name(struct reader_chunk *c, uint64_t n_meta, uint8_t *bytes,                \
                           const char **wrong)                                                     \
    {                                                                                              \
        _cleanup_(freep) uint8_t *owned = bytes;                                                   \
        struct table_view v;                                                                       \
        parse_table(bytes, n_meta, least, &v, wrong);                                              \
        if (*wrong)                                                                                \
            return 0;                                                                              \
        __typeof__(c->name) one, all = calloc(v.n + 1u, sizeof *all);                              \
        if (!all)                                                                                  \
            return -ENOMEM;                                                                        \
        for (uint32_t i = 0; i < v.n; i++) {                                                       \
            one = &all[c->n_held];                                                                 \
            const char *what = parse;                                                              \
            c->n_held += !what;                                                                    \
            *wrong = *wrong ? *wrong : what;                                                       \
        }                                                                                          \
        c->bytes = steal_ptr(owned);                                                               \
        c->name = all;                                                                             \
        return 0;                                                                                  \
    }
TAKE_TABLE(outcomes, sizeof(struct dmi_outcome),
           parse_outcome(&v, i, &one->at, &one->list, &one->id))
TAKE_TABLE(step_times, DMI_STEP_TIMES_LEAST, (parse_step_times(&v, i, one), (const char *)NULL))
TAKE_TABLE(ranges, sizeof(struct dmi_range_entry),
           parse_range(&v, i, &one->at, &one->name, &one->facts))
TAKE_TABLE(marks, sizeof(struct dmi_mark), parse_mark(&v, i, &one->at, &one->text))

/* What ran on the device, held as c->@name. */
#define TAKE_RAN(chunk, name, open, next)                                                          \
    int reader_take_##chunk(struct reader_chunk *c, uint64_t n_meta, uint8_t *bytes,               \
                            const char **wrong)                                                    \
    {                                                                                              \
        _cleanup_(freep) uint8_t *owned = bytes;                                                   \
        struct ran_reader r;                                                                       \
        *wrong = open(&r, bytes, n_meta);                                                          \
        if (*wrong)                                                                                \
            return 0;                                                                              \
        __typeof__(c->name) all = calloc(r.head.n_records + 1ull, sizeof *all);                    \
        if (!all)                                                                                  \
            return -ENOMEM;                                                                        \
        while (next(&r, &all[c->n_held], wrong))                                                   \
            c->n_held++;                                                                           \
        c->bytes = steal_ptr(owned);                                                               \
        c->name = all;                                                                             \
        return 0;                                                                                  \
    }
TAKE_RAN(trace, ran, ran_open, ran_next)
TAKE_RAN(sums, sums, ran_open_sums, ran_next_sum)

void reader_free_held(struct reader_chunk *c)
{
    free(c->bytes);
    free(c->held);
    free(c->spans);
    c->spans = NULL;
    c->bytes = NULL;
    c->held = NULL;
    c->n_held = 0;
}
