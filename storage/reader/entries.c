/* SPDX-License-Identifier: Apache-2.0 */
/* What chunks of steps, outcomes and changes hold, taken from their metadata. Each is checked; those that contradict themselves are left out. */
#include "core/cleanup.h"
#include "storage/reader/reader_private.h"

#include <errno.h>
#include <stdlib.h>

int reader_take_steps(struct reader_chunk *c, uint64_t n_meta, uint8_t *bytes, const char **wrong)
{
    _cleanup_(freep) uint8_t *owned = bytes;
    _cleanup_(freep) struct reader_step *steps = NULL;
    const char *first_wrong = NULL;
    size_t n_steps = 0, room = 0;
    uint64_t n = 0;
    for (uint64_t at = 0; at < n_meta; at += n) {
        int res = parse_step(bytes + at, n_meta - at, &n, wrong);
        if (!res && !*wrong)
            res =
                grow((void **)&steps, n_steps, &room, sizeof *steps, 1); /* most chunks have few */
        if (res)
            return res;
        const struct dmi_step_entry *e = (const struct dmi_step_entry *)(void *)(bytes + at);
        if (!*wrong)
            steps[n_steps++] =
                (struct reader_step){ .entry = e, .spans = (const struct dmi_span_entry *)(e + 1) };
        else if (!first_wrong)
            first_wrong = *wrong;
        if (!n)
            break;
    }
    *wrong = first_wrong;
    c->bytes = steal_ptr(owned);
    c->steps = steal_ptr(steps);
    c->n_held = n_steps;
    return 0;
}

int reader_take_outcomes(struct reader_chunk *c, uint64_t n_meta, uint8_t *bytes,
                         const char **wrong)
{
    _cleanup_(freep) uint8_t *owned = bytes;
    struct outcomes_view v;
    parse_outcomes(bytes, n_meta, &v, wrong);
    if (*wrong)
        return 0;
    struct reader_outcome *all = calloc(v.n + 1u, sizeof *all);
    if (!all)
        return -ENOMEM;
    for (uint32_t i = 0; i < v.n; i++) {
        struct reader_outcome o = { 0 };
        const char *what = parse_outcome(&v, i, &o.at, &o.list, &o.id);
        if (what && !*wrong)
            *wrong = what;
        else if (!what)
            all[c->n_held++] = o;
    }
    c->bytes = steal_ptr(owned);
    c->outcomes = all;
    return 0;
}

static bool is_object(const char *json, size_t n)
{
    json_t *value = reader_parse_json(json, n);
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
        if (GROW(all, n_all, room))
            return -ENOMEM;
        all[n_all++] = one;
    }
    c->bytes = steal_ptr(owned);
    c->noted_changes = steal_ptr(all);
    c->n_held = n_all;
    return 0;
}

void reader_free_held(struct reader_chunk *c)
{
    free(c->bytes);
    free(c->held);
    c->bytes = NULL;
    c->held = NULL;
    c->n_held = 0;
}
