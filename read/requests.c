/* SPDX-License-Identifier: Apache-2.0 */
#include "read/requests.h"

#include "core/grow.h"
#include "read/attribution.h"
#include "read/record.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct request *find(struct requests *out, const char *id, size_t n_id)
{
    size_t index = map_get(&out->by_id, id, n_id);
    if (index != MAP_NONE)
        return &out->all[index];
    if (grow((void **)&out->all, out->n, &out->room, sizeof *out->all, 64))
        return NULL;
    char *own = out->owns_ids ? malloc(n_id + 1) : NULL;
    if (own)
        memcpy(own, id, n_id);
    else if (out->owns_ids)
        return NULL;
    struct request *r = &out->all[out->n];
    *r = (struct request){ .id = own ? own : id,
                           .n_id = n_id,
                           .n_prompt = -1,
                           .step = SIZE_MAX,
                           .last_record = SIZE_MAX };
    size_t *slot = map_at(&out->by_id, r->id, n_id);
    if (!slot) {
        free(own);
        return NULL;
    }
    *slot = out->n++;
    return r;
}

/* ------------------------------------------------------------------------- one span */

/* Rows that count, and after which of the span's the last of them comes. */
static void accepted_rows(const struct reader_step *step, uint32_t i, uint64_t *n, uint32_t *end)
{
    const struct reader_outcome *o = reader_outcome_of(step, i);
    uint32_t n_tokens = step->spans[i].n_tokens, part;
    *n = 0;
    *end = 0;
    for (uint32_t t = 0; t < n_tokens; t += part) {
        bool holds = reader_outcome_has(o, t, &part);
        part = part < n_tokens - t ? part : n_tokens - t;
        *n += holds ? part : 0;
        *end = holds ? t + part : *end;
    }
}

static void begin_step(struct request *r, size_t step)
{
    if (r->step == step)
        return;
    r->step = step;
    r->firm = r->now;
    r->decoded = r->decodes;
    r->decodes = false;
    r->n_steps++;
}

/* Where generation begins: as said, the first time; else where the first step decodes. */
static void take_prompt(struct request *r, const struct dmi_span_entry *span)
{
    bool decodes = span->phase == DMI_PHASE_DECODE || span->phase == DMI_PHASE_DRAFT;
    if (span->n_prompt && !r->prompt_is_said) {
        r->n_prompt = span->n_prompt;
        r->prompt_is_said = true;
    } else if (decodes && r->n_prompt < 0 && span->n_tokens) {
        r->n_prompt = span->first_position;
    }
    r->decodes |= decodes;
}

/*
 * Preempted: it computes positions that it had, or comes as prefill after it decoded. Drafts of which nothing is said may
 * have been rejected: to compute their positions again says nothing.
 */
static void take_place(struct request *r, const struct dmi_span_entry *span, uint32_t n_holds,
                       bool sure)
{
    bool back = span->first_position < r->firm ||
                (span->phase == DMI_PHASE_PREFILL && r->decoded && r->firm);
    int64_t end = span->first_position + (int64_t)n_holds; /* fits: the reader has checked it */
    int64_t now = sure ? end : span->first_position;
    /* Of a span that was rejected as a whole nothing is the request's. */
    if (!span->n_tokens || (sure && !n_holds))
        return;
    if (back) {
        r->n_preemptions++;
        r->resumes = true;
        r->firm = 0; /* once a step */
        r->decoded = false;
        r->now = now;
    }
    r->now = now > r->now ? now : r->now;
    r->end = end > r->end ? end : r->end;
    if (r->now >= r->end)
        r->resumes = false;
}

/* What adapters say of requests that search with beams. */
static const char beams_key[] = "\"dmi.beams\"";

static void take_tags(const struct requests *out, struct request *r, const struct reader_step *step,
                      uint32_t i)
{
    const struct dmi_span_entry *span = &step->spans[i];
    const char *tags = (const char *)step->entry + span->tags_offset;
    if (!span->tags_bytes)
        return;
    r->has_beams |= memmem(tags, span->tags_bytes, beams_key, sizeof beams_key - 1) != NULL;
    r->tags = out->owns_ids ? NULL : tags;
    r->n_tags = out->owns_ids ? 0 : span->tags_bytes;
}

static int take_span(struct requests *out, const struct reader_step *step, size_t s, uint32_t i)
{
    const struct dmi_span_entry *span = &step->spans[i];
    uint32_t *of = &out->of_span[out->first_span[s] + i];
    *of = UINT32_MAX;
    if (span->flags & DMI_SPAN_PADDING)
        return 0;
    size_t n_id;
    const char *id = reader_span_id(step, i, &n_id);
    struct request *r = find(out, id, n_id);
    if (!r)
        return -ENOMEM;
    *of = (uint32_t)(r - out->all);
    uint64_t n_accepted;
    uint32_t n_holds;
    accepted_rows(step, i, &n_accepted, &n_holds);
    begin_step(r, out->n_steps + s);
    if (r->n_steps == 1 && span->n_cached && !r->cached_end)
        r->cached_end = span->first_position;
    take_tags(out, r, step, i);
    take_prompt(r, span);
    take_place(r, span, n_holds,
               span->phase != DMI_PHASE_DRAFT || reader_outcome_of(step, i) != NULL);
    r->n_tokens[span->phase <= DMI_PHASE_DRAFT ? span->phase : DMI_PHASE_UNKNOWN] += span->n_tokens;
    r->n_cached += span->n_cached;
    r->n_rejected += span->n_tokens - n_accepted;
    r->state = r->resumes ? REQUEST_PREEMPTED : REQUEST_RUNNING;
    if (span->flags & DMI_SPAN_LAST) {
        r->ended = true;
        r->reason = DMI_END_UNKNOWN;
    }
    out->n_computed += span->n_tokens;
    out->n_cached += span->n_cached;
    out->n_rejected += span->n_tokens - n_accepted;
    return 0;
}

/* ------------------------------------------------------------------------- all of them */

/* The engine's number of the step before place @at; 0: there is none. */
static uint64_t number_before(const struct reader_steps *steps, size_t at)
{
    if (at)
        return steps->all[at - 1].entry->step;
    return steps->any_before ? steps->before.step : 0;
}

/* Ends before step @s, from the @next one on. */
static int take_ends(struct requests *out, const struct reader_steps *steps, size_t s, size_t *next)
{
    for (; *next < steps->n_ends && steps->ends[*next].after <= s; ++*next) {
        const struct reader_end *end = &steps->ends[*next];
        struct request *r = find(out, end->id, end->n_id);
        if (!r)
            return -ENOMEM;
        if (end->shed) {
            r->shed = true;
            r->shed_step = number_before(steps, end->after);
            continue;
        }
        r->ended = true;
        r->reason = end->reason;
    }
    return 0;
}

static int prepare(const struct reader_steps *steps, struct requests *out)
{
    size_t n_spans = 0;
    free(out->first_span);
    free(out->of_span);
    out->of_span = NULL;
    out->first_span = calloc(steps->n + 1, sizeof *out->first_span);
    for (size_t s = 0; out->first_span && s < steps->n; s++) {
        out->first_span[s] = n_spans;
        n_spans += steps->all[s].entry->n_spans;
    }
    out->of_span = calloc(n_spans + 1, sizeof *out->of_span);
    return out->first_span && out->of_span ? 0 : -ENOMEM;
}

int requests_take(struct requests *out, const struct reader_steps *steps)
{
    size_t next = 0;
    int r = prepare(steps, out);
    for (size_t s = 0; !r && s < steps->n; s++) {
        r = take_ends(out, steps, s, &next);
        for (uint32_t i = 0; !r && i < steps->all[s].entry->n_spans; i++)
            r = take_span(out, &steps->all[s], s, i);
    }
    if (!r)
        r = take_ends(out, steps, SIZE_MAX, &next);
    out->n_steps += steps->n;
    return r;
}

/* Once all were taken. */
static void requests_end(struct requests *out)
{
    for (size_t i = 0; i < out->n; i++)
        if (out->all[i].ended)
            out->all[i].state =
                out->all[i].reason == DMI_END_ABORTED ? REQUEST_ABORTED : REQUEST_FINISHED;
}

int requests_build(const struct reader *reader, struct requests *out)
{
    *out = (struct requests){ 0 };
    int r = requests_take(out, reader_steps(reader));
    if (r)
        requests_deinit(out);
    else
        requests_end(out);
    return r;
}

void requests_deinit(struct requests *requests)
{
    for (size_t i = 0; requests->owns_ids && i < requests->n; i++)
        free((char *)(uintptr_t)requests->all[i].id);
    free(requests->all);
    free(requests->first_span);
    free(requests->of_span);
    map_deinit(&requests->by_id);
    *requests = (struct requests){ 0 };
}

const struct request *requests_find(const struct requests *requests, const char *id, size_t n_id)
{
    size_t i = map_get(&requests->by_id, id, n_id);
    return i == MAP_NONE ? NULL : &requests->all[i];
}

uint64_t request_computed(const struct request *r)
{
    uint64_t n = 0;
    for (size_t phase = 0; phase <= DMI_PHASE_DRAFT; phase++)
        n += r->n_tokens[phase];
    return n;
}

uint64_t request_generated(const struct request *r)
{
    return r->n_prompt >= 0 && r->end > r->n_prompt ? (uint64_t)(r->end - r->n_prompt) : 0;
}

struct range request_tokens(const struct request *r, enum token_kind kind)
{
    struct range none = { 0, 0 };
    switch (kind) {
    case TOKENS_PROMPT: return r->n_prompt < 0 ? none : (struct range){ 0, r->n_prompt };
    case TOKENS_GENERATED: return r->n_prompt < 0 ? none : (struct range){ r->n_prompt, INT64_MAX };
    case TOKENS_LAST: return (struct range){ r->end - 1, r->end };
    default: return none;
    }
}

const char *request_state_name(enum request_state state)
{
    static const char *const names[] = { "running", "finished", "aborted", "preempted" };
    return names[state];
}

const char *request_reason_name(uint32_t reason)
{
    static const char *const names[] = { "unknown", "stop", "length", "aborted" };
    return reason <= DMI_END_ABORTED ? names[reason] : names[0];
}

const char *request_phase_name(uint32_t phase)
{
    static const char *const names[] = { "unknown", "prefill", "decode", "draft" };
    return phase <= DMI_PHASE_DRAFT ? names[phase] : names[0];
}

/* ------------------------------------------------------------------------- what they cost */

struct costs {
    const struct reader *reader;
    struct requests *requests;
};

static int add_cost(void *ctx, const struct part *part)
{
    const struct costs *costs = ctx;
    const struct requests *out = costs->requests;
    const struct reader_record *rec = reader_record(costs->reader, part->record);
    size_t step = (size_t)(rec->step - reader_step(costs->reader, 0));
    uint32_t owner =
        part->span == UINT32_MAX ? UINT32_MAX : out->of_span[out->first_span[step] + part->span];
    if (owner == UINT32_MAX)
        return 0;
    struct request *r = &out->all[owner];
    uint64_t n = part->n_rows * record_width(rec) * dmi_dtype_bytes(rec->at.dtype);
    r->n_records += r->last_record != part->record;
    r->last_record = part->record;
    r->n_rows += part->n_rows;
    r->n_bytes += n;
    r->n_stored += rec->at.n_bytes ? rec->n_stored * (double)n / (double)rec->at.n_bytes : 0;
    return 0;
}

int requests_add_costs(const struct reader *reader, struct requests *requests)
{
    struct costs costs = { reader, requests };
    struct attribution j = { .reader = reader, .by_request = true, .add = add_cost, .ctx = &costs };
    int r = attribution_init(&j);
    for (size_t i = 0; !r && i < reader_n_records(reader); i++)
        if (reader_record(reader, i)->step)
            r = attribution_record(&j, i);
    attribution_deinit(&j);
    return r;
}
