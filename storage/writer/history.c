/* SPDX-License-Identifier: Apache-2.0 */
#include "storage/writer/history.h"

#include "core/cleanup.h"
#include "core/grow.h"
#include "core/sorted.h"
#include "storage/parse.h"
#include "storage/table.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct history_step {
    uint64_t sequence;
    uint32_t segment; /* the last one that has it */
    char *entry;      /* as in STEPS */
    size_t n_entry;
    struct text outcomes, strings; /* struct dmi_outcome with offsets in @strings */
};

static void step_deinit(struct history_step *s)
{
    free(s->entry);
    text_deinit(&s->outcomes);
    text_deinit(&s->strings);
}

void history_deinit(struct history *h)
{
    for (size_t i = 0; i < h->n; i++)
        step_deinit(&h->steps[i]);
    free(h->steps);
    changes_deinit(&h->changes);
    *h = (struct history){ 0 };
}

/* The first step of that number or a later one. */
static size_t lower(const struct history *h, uint64_t sequence)
{
    size_t i;
    SEARCH(i, h->n, h->steps[i].sequence < sequence);
    return i;
}

static struct history_step *find(const struct history *h, uint64_t sequence)
{
    size_t at = lower(h, sequence);
    return at < h->n && h->steps[at].sequence == sequence ? &h->steps[at] : NULL;
}

/* ------------------------------------------------------------------------- what was written */

/* A half of them at a time: the others move once. */
static void forget_oldest(struct history *h)
{
    size_t n = 0;
    while (n < h->n && h->n_bytes > HISTORY_MAX_BYTES / 2) {
        h->n_bytes -= h->steps[n].n_entry;
        step_deinit(&h->steps[n++]);
    }
    memmove(h->steps, h->steps + n, (h->n - n) * sizeof *h->steps);
    h->n -= n;
}

/* Without memory it is not noted: then it is not repeated. */
static void add_step(struct history *h, const struct dmi_step_entry *at, const uint8_t *entry,
                     uint32_t segment)
{
    if (h->n_bytes + at->n_bytes > HISTORY_MAX_BYTES)
        forget_oldest(h);
    struct history_step step = { .sequence = at->sequence,
                                 .segment = segment,
                                 .n_entry = at->n_bytes };
    if (grow((void **)&h->steps, h->n, &h->room, sizeof *h->steps, 64) ||
        !(step.entry = malloc(step.n_entry)))
        return;
    memcpy(step.entry, entry, step.n_entry);
    size_t to = lower(h, step.sequence);
    memmove(h->steps + to + 1, h->steps + to, (h->n - to) * sizeof *h->steps);
    h->steps[to] = step;
    h->n++;
    h->n_bytes += step.n_entry;
}

static void repeat_steps(struct history *h, const struct chunk *chunk, uint32_t segment)
{
    struct dmi_step_entry at;
    for (size_t from = 0; from < chunk->header.n_meta; from += at.n_bytes) {
        memcpy(&at, chunk->meta + from, sizeof at);
        struct history_step *known = find(h, at.sequence);
        if (known)
            known->segment = segment;
        else
            add_step(h, &at, chunk->meta + from, segment);
    }
}

static void add_outcome(struct history_step *step, struct dmi_outcome at, const uint8_t *list,
                        const char *id)
{
    size_t n_outcomes = step->outcomes.n, n_strings = step->strings.n;
    if (list) {
        at.accepted = (uint32_t)step->strings.n;
        text_add(&step->strings, (const char *)list, at.n_accepted * sizeof(uint32_t));
    }
    at.id_offset = (uint32_t)step->strings.n;
    text_add(&step->strings, id, at.id_bytes);
    text_add(&step->outcomes, (const char *)&at, sizeof at);
    if (step->strings.failed || step->outcomes.failed) {
        step->strings.failed = step->outcomes.failed = 0;
        step->strings.n = n_strings, step->outcomes.n = n_outcomes;
    }
}

static void note_outcome(void *ctx, const struct dmi_outcome *at, const uint8_t *list,
                         const char *id)
{
    struct history_step *step = find(ctx, at->step);
    if (step)
        add_outcome(step, *at, list, id);
}

static void repeat_outcomes(struct history *h, const struct chunk *chunk, uint32_t segment)
{
    (void)segment;
    parse_each_outcome(chunk->meta, chunk->header.n_meta, note_outcome, h);
}

static void repeat_changes(struct history *h, const struct chunk *chunk, uint32_t segment)
{
    changes_note(&h->changes, chunk, segment);
}

static void (*const repeat_of[])(struct history *h, const struct chunk *chunk, uint32_t segment) = {
#define CHUNK_TYPE(type, of, name, payload, index, repeat, ...) [DMI_CHUNK_##type] = repeat,
#include "storage/chunk_types.def"
};

void history_note(struct history *h, const struct chunk *chunk, uint32_t segment)
{
    uint32_t type = chunk->header.type;
    if (type < sizeof repeat_of / sizeof repeat_of[0] && repeat_of[type])
        repeat_of[type](h, chunk, segment);
}

/* ------------------------------------------------------------------------- what is written again */

struct again {
    struct text steps, outcomes, strings;
};

static void add_again(struct again *a, const struct history_step *step)
{
    const struct dmi_outcome *outcomes = (const void *)step->outcomes.data;
    uint32_t base = (uint32_t)a->strings.n;
    text_add(&a->steps, step->entry, step->n_entry);
    for (size_t i = 0; i < step->outcomes.n / sizeof *outcomes; i++) {
        struct dmi_outcome at = outcomes[i];
        at.id_offset += base;
        if (at.flags & DMI_OUTCOME_ACCEPTED && at.accepted != DMI_OUTCOME_FIRST)
            at.accepted += base;
        text_add(&a->outcomes, (const char *)&at, sizeof at);
    }
    text_add(&a->strings, step->strings.data ? step->strings.data : "", step->strings.n);
}

/* Steps of @records that stand in earlier segments alone: sorted, each at least once. */
static size_t missing_steps(const struct history *h, const struct chunk *records, uint32_t segment,
                            uint64_t *out)
{
    struct dmi_records_head head;
    struct dmi_record rec;
    uint64_t last = DMI_NO_STEP;
    size_t n = 0;
    memcpy(&head, records->meta, sizeof head);
    for (uint32_t i = 0; i < head.n_records; i++) {
        memcpy(&rec, records->meta + sizeof head + i * sizeof rec, sizeof rec);
        if (rec.step == last)
            continue;
        last = rec.step;
        const struct history_step *step = last == DMI_NO_STEP ? NULL : find(h, last);
        if (step && step->segment != segment)
            out[n++] = last;
    }
    qsort(out, n, sizeof *out, order_u64);
    return n;
}

int history_again(const struct history *h, const struct chunk *records, uint32_t segment,
                  struct text *steps, struct text *outcomes, struct text *changes)
{
    if (chunk_n_records(records) && changes_again(&h->changes, segment, changes))
        return -ENOMEM;
    if (!h->n || !chunk_n_records(records))
        return 0;
    _cleanup_(freep) uint64_t *missing = malloc(chunk_n_records(records) * sizeof *missing);
    if (!missing)
        return -ENOMEM;
    struct again a = { 0 };
    size_t n = missing_steps(h, records, segment, missing);
    for (size_t i = 0; i < n; i++)
        if (!i || missing[i] != missing[i - 1])
            add_again(&a, find(h, missing[i]));
    bool failed = a.steps.failed || a.outcomes.failed || a.strings.failed ||
                  (a.outcomes.n &&
                   !table_meta(&a.outcomes, sizeof(struct dmi_outcome), &a.strings, outcomes));
    text_deinit(&a.outcomes);
    text_deinit(&a.strings);
    if (failed) {
        text_deinit(&a.steps);
        return -ENOMEM;
    }
    *steps = a.steps;
    return 0;
}
