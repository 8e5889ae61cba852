/* SPDX-License-Identifier: Apache-2.0 */
#include "storage/writer/steps.h"

#include "core/cleanup.h"
#include "core/clock.h"
#include "core/err.h"
#include "storage/rows.h"

#include <dmi/format.h>
#include <dmi/span.h>

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

static int refuse(const char **why, const char *sentence)
{
    *why = sentence;
    return -EINVAL;
}

/* ------------------------------------------------------------------------- what cannot be */

const char *steps_wrong_id(const struct dmi_span *span)
{
    if (!span->request_id || !*span->request_id)
        return span->flags & DMI_SPAN_PADDING ? NULL : "a span has no request id";
    return strnlen(span->request_id, DMI_MAX_ID + 1u) > DMI_MAX_ID
               ? "a request id has more than 255 bytes"
               : NULL;
}

/* Ids that are said of a span: those of padding are nobody's. */
static uint32_t n_cached_ids(const struct dmi_span *span)
{
    return span->cached_ids && !(span->flags & DMI_SPAN_PADDING) ? span->n_cached : 0;
}

static const char *check_span(const struct dmi_span *span)
{
    bool padding = span->flags & DMI_SPAN_PADDING;
    const char *wrong = steps_wrong_id(span);
    if (wrong)
        return wrong;
    if (span->tags && strnlen(span->tags, DMI_MAX_TAGS + 1u) > DMI_MAX_TAGS)
        return "a span's tags have more than 65,535 bytes";
    if (!rows_position_fits(span->first_position, span->n_tokens))
        return "a span's positions cannot be";
    return span->n_cached > span->first_position && !padding
               ? "more tokens are cached than there are before the span"
               : NULL;
}

static int owner_order(const void *pa, const void *pb)
{
    const struct dmi_span *a = pa, *b = pb;
    int c = strcmp(a->request_id, b->request_id);
    if (c)
        return c;
    return a->first_position < b->first_position ? -1 : a->first_position > b->first_position;
}

/* Whether two spans of one request have a position in common. @spans: those with tokens of a request; put in order. */
static bool positions_repeat(struct dmi_span *spans, uint32_t n)
{
    qsort(spans, n, sizeof *spans, owner_order);
    for (uint32_t i = 1; i < n; i++)
        if (!strcmp(spans[i - 1].request_id, spans[i].request_id) &&
            spans[i].first_position - spans[i - 1].first_position < (int64_t)spans[i - 1].n_tokens)
            return true;
    return false;
}

static int check_spans(const struct dmi_step *step, const char **why)
{
    _cleanup_(freep) struct rows_range *ranges = malloc((step->n_spans + 1u) * sizeof *ranges);
    _cleanup_(freep) struct dmi_span *spans = malloc((step->n_spans + 1u) * sizeof *spans);
    uint32_t n = 0;
    *why = "no memory";
    if (!ranges || !spans)
        return -ENOMEM;
    for (uint32_t i = 0; i < step->n_spans; i++) {
        const struct dmi_span span = dmi_span_read(step, i);
        ranges[i] = (struct rows_range){ span.first_row, span.n_tokens };
        if ((*why = check_span(&span)))
            return -EINVAL;
        if (span.n_tokens && !(span.flags & DMI_SPAN_PADDING))
            spans[n++] = span;
    }
    if (!rows_disjoint(ranges, step->n_spans, step->n_rows))
        return refuse(why, "a span lies outside of the batch's rows, or shares some with another");
    return positions_repeat(spans, n)
               ? refuse(why, "two spans of one request have a position in common")
               : 0;
}

static bool ranks_fit(const int32_t ranks[8])
{
    for (int i = 0; i < 8; i += 2)
        if (ranks[i] < 0 || ranks[i + 1] < 0 || ranks[i] >= (ranks[i + 1] ? ranks[i + 1] : 1))
            return false;
    return true;
}

static int check_step(uint64_t sequence, const struct dmi_step *step, const int32_t ranks[8],
                      const char **why)
{
    if (sequence == DMI_NO_STEP || step->n_spans > DMI_MAX_SPANS || (step->n_spans && !step->spans))
        return refuse(why, "its number of spans cannot be");
    if (step->span_size && step->span_size < DMI_SPAN_LEAST)
        return refuse(why, "the size of its spans is not one that is known");
    if (!ranks_fit(ranks))
        return refuse(why, "a rank lies outside of its size");
    if (step->tags && strnlen(step->tags, DMI_MAX_TAGS + 1u) > DMI_MAX_TAGS)
        return refuse(why, "its tags have more than 65,535 bytes");
    return step->n_spans ? check_spans(step, why) : 0;
}

/* ------------------------------------------------------------------------- the entry */

static size_t length(const char *s)
{
    return s ? strlen(s) : 0; /* bounded: check_span() */
}

static void add_string(struct text *t, const char *s, size_t n, size_t start, uint32_t *offset,
                       uint32_t *n_bytes)
{
    *offset = n ? (uint32_t)(t->n - start) : 0;
    *n_bytes = (uint32_t)n;
    text_add(t, s ? s : "", n);
}

static void add_ids(struct text *t, const struct dmi_span *span, size_t start,
                    struct dmi_span_entry *e)
{
    e->n_ids = n_cached_ids(span);
    if (!e->n_ids || t->n + e->n_ids * (uint64_t)sizeof(int32_t) > STEPS_MOST_WITH_IDS) {
        e->n_ids = 0;
        return;
    }
    text_add(t, "\0\0\0", -(t->n - start) % sizeof(int32_t));
    e->ids_offset = (uint32_t)(t->n - start);
    text_add(t, (const char *)span->cached_ids, (size_t)e->n_ids * sizeof(int32_t));
}

static void add_span(struct text *t, const struct dmi_span *span, size_t start, uint32_t i,
                     bool with_ids)
{
    struct dmi_span_entry e = {
        .first_position = span->first_position,
        .first_row = span->first_row,
        .n_tokens = span->n_tokens,
        .n_cached = span->n_cached,
        .phase = span->phase,
        .flags = span->flags,
        .n_prompt = span->n_prompt,
    };
    add_string(t, span->request_id, length(span->request_id), start, &e.id_offset, &e.id_bytes);
    add_string(t, span->tags, length(span->tags), start, &e.tags_offset, &e.tags_bytes);
    if (with_ids)
        add_ids(t, span, start, &e);
    if (!t->failed)
        memcpy(t->data + start + sizeof(struct dmi_step_entry) + i * sizeof e, &e, sizeof e);
}

static void add_entry(struct text *t, const struct dmi_step *step, struct dmi_step_entry *entry,
                      bool with_ids)
{
    size_t start = t->n;
    text_add(t, (const char *)entry, sizeof *entry);
    for (uint32_t i = 0; i < step->n_spans; i++) {
        static const struct dmi_span_entry none;
        text_add(t, (const char *)&none, sizeof none); /* its place: strings come after all spans */
    }
    for (uint32_t i = 0; i < step->n_spans; i++) {
        const struct dmi_span span = dmi_span_read(step, i);
        add_span(t, &span, start, i, with_ids);
    }
    add_string(t, step->tags, length(step->tags), start, &entry->tags_offset, &entry->tags_bytes);
    text_add(t, "\0\0\0\0\0\0\0", -(t->n - start) % DMI_CHUNK_ALIGN);
    entry->n_bytes = (uint32_t)(t->n - start);
    if (!t->failed)
        memcpy(t->data + start, entry, sizeof *entry);
}

int steps_add(struct text *entries, uint64_t sequence, const struct dmi_step *step, bool with_ids,
              const char **why)
{
    const int32_t ranks[8] = { step->tp_rank, step->tp_size, step->pp_rank, step->pp_size,
                               step->dp_rank, step->dp_size, step->ep_rank, step->ep_size };
    TRY(check_step(sequence, step, ranks, why));
    struct dmi_step_entry entry = {
        .n_spans = step->n_spans,
        .sequence = sequence,
        .step = step->step,
        .time_ns = clock_real_ns(),
        .n_rows = step->n_rows,
        .flags = step->flags,
        .span_bytes = sizeof(struct dmi_span_entry),
    };
    memcpy(entry.ranks, ranks, sizeof ranks);
    size_t start = entries->n;
    add_entry(entries, step, &entry, with_ids);
    if (entries->failed || entries->n > DMI_MAX_META / 2) {
        entries->n = start;
        entries->failed = 0;
        *why = "no memory, or too many steps wait for the disk";
        return -ENOMEM;
    }
    return 0;
}
