/* SPDX-License-Identifier: Apache-2.0 */
/* Whose token a row of a record is. Source: docs/format.md, "From rows to tensors". */
#include "read/attribution.h"

#include "core/cleanup.h"
#include "core/err.h"
#include "core/grow.h"
#include "core/sorted.h"
#include "read/record.h"

#include <dmi/dmi.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A forward of a run whose engine did not say what it computes. */
struct attribution_forward {
    uint64_t number;
    uint64_t n_tokens;
    int64_t first_position;
};

bool attribution_is_by_request(const struct reader *reader)
{
    const struct dmi_counters *counters = reader_run(reader)->counters;
    return reader_first_ranks(reader) || (counters && counters->steps);
}

/* ------------------------------------------------------------------------- without steps */

static int forward_order(const void *pa, const void *pb)
{
    const struct attribution_forward *a = pa, *b = pb;
    return a->number < b->number ? -1 : a->number > b->number;
}

/* Puts them in the order of their numbers, each once. */
static void merge_forwards(struct attribution *j)
{
    struct attribution_forward *f = j->forwards;
    size_t kept = 0;
    if (j->n_forwards)
        qsort(f, j->n_forwards, sizeof *f, forward_order);
    for (size_t i = 0; i < j->n_forwards; i++) {
        if (!kept || f[kept - 1].number != f[i].number)
            f[kept++] = f[i];
        else if (f[i].n_tokens > f[kept - 1].n_tokens)
            f[kept - 1].n_tokens = f[i].n_tokens;
    }
    j->n_forwards = kept;
}

/* Each forward has as many tokens as its longest tensor with token rows. */
int attribution_count(struct attribution *j)
{
    size_t n = j->by_request ? 0 : reader_n_records(j->reader);
    for (size_t i = 0; i < n; i++) {
        const struct reader_record *rec = reader_record(j->reader, i);
        bool token = reader_site(j->reader, rec->at.site)->row == DMI_ROW_TOKEN;
        uint64_t n_tokens = token ? record_rows(rec) : 0;
        struct attribution_forward *last = j->n_forwards ? &j->forwards[j->n_forwards - 1] : NULL;
        if (last && last->number == rec->at.forward) {
            last->n_tokens = n_tokens > last->n_tokens ? n_tokens : last->n_tokens;
            continue;
        }
        if (grow((void **)&j->forwards, j->n_forwards, &j->forwards_room, sizeof *last, 256))
            return -ENOMEM;
        j->forwards[j->n_forwards++] = (struct attribution_forward){ rec->at.forward, n_tokens, 0 };
    }
    merge_forwards(j);
    return 0;
}

void attribution_place(struct attribution *j)
{
    int64_t position = 0;
    for (size_t i = 0; i < j->n_forwards; i++) {
        j->forwards[i].first_position = position;
        position += (int64_t)j->forwards[i].n_tokens;
    }
}

int attribution_init(struct attribution *j)
{
    int r = attribution_count(j);
    if (!r)
        attribution_place(j);
    return r;
}

void attribution_deinit(struct attribution *j)
{
    free(j->forwards);
    j->forwards = NULL;
    j->n_forwards = j->forwards_room = 0;
}

static const struct attribution_forward *forward_of(const struct attribution *j, uint64_t number)
{
    struct attribution_forward key = { .number = number };
    return bsearch(&key, j->forwards, j->n_forwards, sizeof key, forward_order);
}

static int attribute_forward(struct attribution *j, size_t index, const struct reader_record *rec,
                             uint32_t meaning)
{
    int64_t position = -1;
    const char *request = NULL;
    if (!j->by_request && meaning != DMI_ROW_NONE) {
        const struct attribution_forward *f = forward_of(j, rec->at.forward);
        position = f->first_position;
        /* rows a request: one request, so the last token of the forward */
        if (meaning == DMI_ROW_REQUEST && f->n_tokens)
            position += (int64_t)f->n_tokens - 1;
        else if (meaning == DMI_ROW_TOKEN)
            j->n_short += record_rows(rec) < f->n_tokens;
        request = j->implied;
    }
    const struct part part = { .record = index,
                               .request = request,
                               .n_request = request ? strlen(request) : 0,
                               .span = UINT32_MAX,
                               .n_rows = record_rows(rec),
                               .position = position };
    return j->add(j->ctx, &part);
}

/* ------------------------------------------------------------------------- with steps */

static const char *request_of(const struct attribution *j, const struct reader_step *step,
                              uint32_t span, size_t *n_id)
{
    const char *id = reader_span_id(step, span, n_id);
    for (size_t i = 0; i < j->n_aliases; i++) {
        const struct alias *alias = &j->aliases[i];
        if (*n_id != alias->n_id || memcmp(id, alias->id, *n_id))
            continue;
        *n_id = strlen(alias->name);
        return alias->name;
    }
    return id;
}

/* Gives rows of a span to its request, accepted and rejected ones apart; those of padding belong to nobody. @token: index
 * in the span of the first row's. */
static int give(struct attribution *j, size_t index, const struct reader_step *step, uint32_t span,
                uint32_t token, uint32_t first_row, uint32_t n_rows)
{
    if (step->spans[span].flags & DMI_SPAN_PADDING || !n_rows) {
        j->n_nobody += n_rows;
        return 0;
    }
    const struct reader_outcome *outcome = reader_outcome_of(step, span);
    struct part part = { .record = index, .span = span, .first_row = first_row };
    part.request = request_of(j, step, span, &part.n_request);
    for (uint32_t done = 0, n; done < n_rows; done += n) {
        bool holds = reader_outcome_has(outcome, token + done, &n);
        n = n < n_rows - done ? n : n_rows - done;
        part.first_row = first_row + done;
        part.n_rows = n;
        part.position =
            (int64_t)((uint64_t)step->spans[span].first_position + token + (uint64_t)done);
        part.rejected = !holds;
        TRY(j->add(j->ctx, &part));
    }
    return 0;
}

/* Rows that are tokens, all of them: each span takes its own. */
static int attribute_tokens(struct attribution *j, size_t index, const struct reader_record *rec)
{
    uint32_t n_rows = record_rows(rec), owned = 0;
    bool is_short = false;
    for (uint32_t i = 0; i < rec->step->entry->n_spans; i++) {
        const struct dmi_span_entry *span = &rec->step->spans[i];
        uint32_t room = span->first_row < n_rows ? n_rows - span->first_row : 0;
        uint32_t n = span->n_tokens < room ? span->n_tokens : room;
        is_short |= n < span->n_tokens && !(span->flags & DMI_SPAN_PADDING);
        TRY(give(j, index, rec->step, i, 0, span->first_row, n));
        owned += n;
    }
    j->n_short += is_short;
    j->n_nobody += owned < n_rows ? n_rows - owned : 0;
    return 0;
}

/* ------------------------------------------------------------------------- kept rows */

static int span_order(const void *pa, const void *pb, void *arg)
{
    const struct reader_step *step = arg;
    uint32_t a = step->spans[*(const uint32_t *)pa].first_row;
    uint32_t b = step->spans[*(const uint32_t *)pb].first_row;
    return a < b ? -1 : a > b;
}

/* The spans of a step by their first row. NULL: no memory. */
static uint32_t *spans_by_row(const struct reader_step *step)
{
    uint32_t n = step->entry->n_spans, *spans = calloc(n + 1, sizeof *spans);
    for (uint32_t i = 0; spans && i < n; i++)
        spans[i] = i;
    if (spans)
        qsort_r(spans, n, sizeof *spans, span_order, (void *)(uintptr_t)step);
    return spans;
}

/* The span that owns a row of the batch; n_spans: none. */
static uint32_t owner_of(const struct reader_step *step, const uint32_t *spans, uint32_t row)
{
    uint32_t i, n = step->entry->n_spans;
    SEARCH(i, n, step->spans[spans[i]].first_row <= row);
    if (!i)
        return n;
    const struct dmi_span_entry *s = &step->spans[spans[i - 1]];
    return row - s->first_row < s->n_tokens ? spans[i - 1] : n;
}

/* Some rows of the batch: neighbours that are neighbours there, too, go together. */
static int attribute_kept(struct attribution *j, size_t index, const struct reader_record *rec)
{
    const struct reader_step *step = rec->step;
    const uint32_t *kept = record_kept(rec);
    uint32_t n_rows = record_rows(rec), n;
    _cleanup_(freep) uint32_t *spans = spans_by_row(step);
    if (!spans)
        return -ENOMEM;
    for (uint32_t row = 0; row < n_rows; row += n) {
        uint32_t owner = owner_of(step, spans, kept[row]);
        n = 1;
        if (owner == step->entry->n_spans) {
            j->n_nobody++;
            continue;
        }
        const struct dmi_span_entry *span = &step->spans[owner];
        uint32_t token = kept[row] - span->first_row;
        while (row + n < n_rows && kept[row + n] == kept[row] + n && token + n < span->n_tokens)
            n++;
        TRY(give(j, index, step, owner, token, row, n));
    }
    return 0;
}

/* ------------------------------------------------------------------------- a row a request */

static int give_last(struct attribution *j, size_t index, const struct reader_step *step,
                     uint32_t span, uint32_t row)
{
    return give(j, index, step, span, step->spans[span].n_tokens - 1u, row, 1);
}

/* Kept rows: each names the span that it is of, counted among those with tokens. */
static int attribute_kept_requests(struct attribution *j, size_t index,
                                   const struct reader_record *rec, uint32_t n_with_tokens)
{
    const struct reader_step *step = rec->step;
    const uint32_t *kept = record_kept(rec);
    _cleanup_(freep) uint32_t *spans = calloc(n_with_tokens + 1u, sizeof *spans);
    if (!spans)
        return -ENOMEM;
    for (uint32_t i = 0, n = 0; i < step->entry->n_spans; i++)
        if (step->spans[i].n_tokens)
            spans[n++] = i;
    for (uint32_t row = 0; row < record_rows(rec); row++) {
        j->n_nobody += kept[row] >= n_with_tokens;
        TRY(kept[row] < n_with_tokens ? give_last(j, index, step, spans[kept[row]], row) : 0);
    }
    return 0;
}

/* Neither padding nor a part of a prompt behind which no token was chosen. */
static bool has_own_row(const struct reader_step *step, uint32_t span)
{
    return !(step->spans[span].flags & (DMI_SPAN_PADDING | DMI_SPAN_PART));
}

/* In the order of the spans with tokens; where there are too few rows for all, padding and parts of prompts have none. */
static int attribute_requests(struct attribution *j, size_t index, const struct reader_record *rec)
{
    const struct reader_step *step = rec->step;
    uint32_t n_rows = record_rows(rec), n_with_tokens = 0, n_real = 0, row = 0;
    for (uint32_t i = 0; i < step->entry->n_spans; i++) {
        n_with_tokens += step->spans[i].n_tokens != 0;
        n_real += step->spans[i].n_tokens && has_own_row(step, i);
    }
    if (record_kept(rec))
        return attribute_kept_requests(j, index, rec, n_with_tokens);
    j->n_short += n_rows < n_real;
    for (uint32_t i = 0; i < step->entry->n_spans && row < n_rows; i++) {
        bool has_row = step->spans[i].n_tokens && (n_rows >= n_with_tokens || has_own_row(step, i));
        TRY(has_row ? give_last(j, index, step, i, row) : 0);
        row += has_row;
    }
    j->n_nobody += n_rows - row;
    return 0;
}

int attribution_record(struct attribution *j, size_t index)
{
    const struct reader_record *rec = reader_record(j->reader, index);
    uint32_t meaning = reader_site(j->reader, rec->at.site)->row;
    if (rec->step && meaning == DMI_ROW_TOKEN)
        return record_kept(rec) ? attribute_kept(j, index, rec) : attribute_tokens(j, index, rec);
    if (rec->step && meaning == DMI_ROW_REQUEST)
        return attribute_requests(j, index, rec);
    return attribute_forward(j, index, rec, meaning);
}
