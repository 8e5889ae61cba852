/* SPDX-License-Identifier: Apache-2.0 */
#include "storage/steps.h"

#include "core/cleanup.h"
#include "core/clock.h"
#include "storage/rows.h"

#include <dmi/format.h>

#include <errno.h>
#include <stddef.h>
#include <string.h>

/* The caller's array has its own stride: an older or newer struct dmi_span. */
static void read_span(const struct dmi_step *step, uint32_t i, struct dmi_span *out)
{
    *out = (struct dmi_span){ 0 };
    size_t stride = step->span_size ? step->span_size : sizeof *out;
    memcpy(out, (const char *)step->spans + i * stride,
           stride < sizeof *out ? stride : sizeof *out);
}

static int check_spans(const struct dmi_step *step)
{
    _cleanup_(freep) struct rows_range *ranges = malloc((step->n_spans + 1u) * sizeof *ranges);
    if (!ranges)
        return -ENOMEM;
    for (uint32_t i = 0; i < step->n_spans; i++) {
        struct dmi_span span;
        read_span(step, i, &span);
        ranges[i] = (struct rows_range){ span.first_row, span.n_tokens };
        if (!rows_position_fits(span.first_position, span.n_tokens))
            return -EINVAL;
    }
    return rows_disjoint(ranges, step->n_spans, step->n_rows) ? 0 : -EINVAL;
}

static int check_step(uint64_t sequence, const struct dmi_step *step)
{
    if (sequence == DMI_NO_STEP || step->n_spans > DMI_MAX_SPANS || (step->n_spans && !step->spans))
        return -EINVAL;
    if (step->span_size && step->span_size < offsetof(struct dmi_span, n_prompt))
        return -EINVAL;
    return step->n_spans ? check_spans(step) : 0;
}

static size_t length(const char *s, size_t most)
{
    return s ? strnlen(s, most) : 0;
}

static void add_string(struct text *t, const char *s, size_t n, size_t start, uint32_t *offset,
                       uint32_t *n_bytes)
{
    *offset = n ? (uint32_t)(t->n - start) : 0;
    *n_bytes = (uint32_t)n;
    text_add(t, s ? s : "", n);
}

static void add_span(struct text *t, const struct dmi_span *span, size_t start, uint32_t i)
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
    add_string(t, span->request_id, length(span->request_id, DMI_MAX_ID), start, &e.id_offset,
               &e.id_bytes);
    add_string(t, span->tags, length(span->tags, DMI_MAX_TAGS), start, &e.tags_offset,
               &e.tags_bytes);
    if (!t->failed)
        memcpy(t->data + start + sizeof(struct dmi_step_entry) + i * sizeof e, &e, sizeof e);
}

static void add_entry(struct text *t, const struct dmi_step *step, struct dmi_step_entry *entry)
{
    size_t start = t->n;
    text_add(t, (const char *)entry, sizeof *entry);
    for (uint32_t i = 0; i < step->n_spans; i++) {
        static const struct dmi_span_entry none;
        text_add(t, (const char *)&none, sizeof none); /* its place: strings come after all spans */
    }
    for (uint32_t i = 0; i < step->n_spans; i++) {
        struct dmi_span span;
        read_span(step, i, &span);
        add_span(t, &span, start, i);
    }
    add_string(t, step->tags, length(step->tags, DMI_MAX_TAGS), start, &entry->tags_offset,
               &entry->tags_bytes);
    text_add(t, "\0\0\0\0\0\0\0", -(t->n - start) % DMI_CHUNK_ALIGN);
    entry->n_bytes = (uint32_t)(t->n - start);
    if (!t->failed)
        memcpy(t->data + start, entry, sizeof *entry);
}

int steps_add(struct text *entries, uint64_t sequence, const struct dmi_step *step)
{
    int r = check_step(sequence, step);
    if (r)
        return r;
    const int32_t ranks[8] = { step->tp_rank, step->tp_size, step->pp_rank, step->pp_size,
                               step->dp_rank, step->dp_size, step->ep_rank, step->ep_size };
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
    add_entry(entries, step, &entry);
    if (entries->failed || entries->n > DMI_MAX_META / 2) {
        entries->n = start;
        entries->failed = 0;
        return -ENOMEM;
    }
    return 0;
}
