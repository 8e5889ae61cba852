/* SPDX-License-Identifier: Apache-2.0 */
/* Whose token a row of a record is. Source: docs/format.md, "From rows to tensors". */
#include "read/tensors_private.h"

#include "core/cleanup.h"
#include "read/record.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------- without steps */

static int forward_order(const void *pa, const void *pb)
{
    const struct forward *a = pa, *b = pb;
    return a->number < b->number ? -1 : a->number > b->number;
}

/* Each forward has as many tokens as its longest tensor with token rows. */
int join_forwards(struct build *b)
{
    size_t n = reader_n_records(b->reader), kept = 0;
    struct forward *f = calloc(n + 1, sizeof *f);
    if (!f)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        const struct reader_record *rec = reader_record(b->reader, i);
        bool token = reader_site(b->reader, rec->at.site)->row == DMI_ROW_TOKEN;
        f[i] = (struct forward){ rec->at.forward, token ? record_rows(rec) : 0, 0 };
    }
    qsort(f, n, sizeof *f, forward_order);
    for (size_t i = 0; i < n; i++) {
        if (!kept || f[kept - 1].number != f[i].number)
            f[kept++] = f[i];
        else if (f[i].n_tokens > f[kept - 1].n_tokens)
            f[kept - 1].n_tokens = f[i].n_tokens;
    }
    int64_t position = 0;
    for (size_t i = 0; i < kept; i++) {
        f[i].first_position = position;
        position += (int64_t)f[i].n_tokens;
    }
    b->forwards = f;
    b->n_forwards = kept;
    return 0;
}

static const struct forward *forward_of(const struct build *b, uint64_t number)
{
    struct forward key = { .number = number };
    return bsearch(&key, b->forwards, b->n_forwards, sizeof key, forward_order);
}

static int join_forward(struct build *b, size_t index, const struct reader_record *rec,
                        uint32_t meaning)
{
    int64_t position = -1;
    const char *request = NULL;
    if (!b->out->by_request && meaning != DMI_ROW_NONE) {
        const struct forward *f = forward_of(b, rec->at.forward);
        position = f->first_position;
        /* rows a request: one request, so the last token of the forward */
        if (meaning == DMI_ROW_REQUEST && f->n_tokens)
            position += (int64_t)f->n_tokens - 1;
        else if (meaning == DMI_ROW_TOKEN)
            b->out->n_short += record_rows(rec) < f->n_tokens;
        request = b->query->implied;
    }
    return tensors_add(b, index, request, request ? strlen(request) : 0, 0, record_rows(rec),
                       position);
}

/* ------------------------------------------------------------------------- with steps */

static const char *request_of(const struct build *b, const struct reader_step *step, uint32_t span,
                              size_t *n_id)
{
    const char *id = reader_span_id(step, span, n_id);
    const struct alias *alias = b->query->alias;
    if (!alias || *n_id != alias->n_id || memcmp(id, alias->id, *n_id))
        return id;
    *n_id = strlen(alias->name);
    return alias->name;
}

/* Adds rows of a span to its request's tensor; those of padding belong to nobody. @position: of the first. */
static int give(struct build *b, size_t index, const struct reader_step *step, uint32_t span,
                uint32_t first_row, uint32_t n_rows, int64_t position)
{
    if (step->spans[span].flags & DMI_SPAN_PADDING || !n_rows) {
        b->out->n_nobody += n_rows;
        return 0;
    }
    size_t n_id;
    const char *id = request_of(b, step, span, &n_id);
    return tensors_add(b, index, id, n_id, first_row, n_rows, position);
}

static int64_t position_of(const struct dmi_span_entry *span, uint64_t token)
{
    return (int64_t)((uint64_t)span->first_position + token);
}

/* Rows that are tokens, all of them: each span takes its own. */
static int join_tokens(struct build *b, size_t index, const struct reader_record *rec)
{
    uint32_t n_rows = record_rows(rec), owned = 0;
    bool is_short = false;
    for (uint32_t i = 0; i < rec->step->entry->n_spans; i++) {
        const struct dmi_span_entry *span = &rec->step->spans[i];
        uint32_t room = span->first_row < n_rows ? n_rows - span->first_row : 0;
        uint32_t n = span->n_tokens < room ? span->n_tokens : room;
        is_short |= n < span->n_tokens && !(span->flags & DMI_SPAN_PADDING);
        int r = give(b, index, rec->step, i, span->first_row, n, span->first_position);
        if (r)
            return r;
        owned += n;
    }
    b->out->n_short += is_short;
    b->out->n_nobody += owned < n_rows ? n_rows - owned : 0;
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
    uint32_t low = 0, high = step->entry->n_spans;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (step->spans[spans[mid]].first_row <= row)
            low = mid + 1;
        else
            high = mid;
    }
    if (!low)
        return step->entry->n_spans;
    const struct dmi_span_entry *s = &step->spans[spans[low - 1]];
    return row - s->first_row < s->n_tokens ? spans[low - 1] : step->entry->n_spans;
}

/* Some rows of the batch: neighbours that are neighbours there, too, go together. */
static int join_kept(struct build *b, size_t index, const struct reader_record *rec)
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
            b->out->n_nobody++;
            continue;
        }
        const struct dmi_span_entry *span = &step->spans[owner];
        uint32_t token = kept[row] - span->first_row;
        while (row + n < n_rows && kept[row + n] == kept[row] + n && token + n < span->n_tokens)
            n++;
        int r = give(b, index, step, owner, row, n, position_of(span, token));
        if (r)
            return r;
    }
    return 0;
}

/* ------------------------------------------------------------------------- a row a request */

static int give_last(struct build *b, size_t index, const struct reader_step *step, uint32_t span,
                     uint32_t row)
{
    const struct dmi_span_entry *s = &step->spans[span];
    return give(b, index, step, span, row, 1, position_of(s, s->n_tokens - 1u));
}

/* Kept rows: each names the span that it is of, counted among those with tokens. */
static int join_kept_requests(struct build *b, size_t index, const struct reader_record *rec,
                              uint32_t n_with_tokens)
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
        b->out->n_nobody += kept[row] >= n_with_tokens;
        int r = kept[row] < n_with_tokens ? give_last(b, index, step, spans[kept[row]], row) : 0;
        if (r)
            return r;
    }
    return 0;
}

/* In the order of the spans with tokens; where there are too few rows for all, padding has none. */
static int join_requests(struct build *b, size_t index, const struct reader_record *rec)
{
    const struct reader_step *step = rec->step;
    uint32_t n_rows = record_rows(rec), n_with_tokens = 0, n_real = 0, row = 0;
    for (uint32_t i = 0; i < step->entry->n_spans; i++) {
        n_with_tokens += step->spans[i].n_tokens != 0;
        n_real += step->spans[i].n_tokens && !(step->spans[i].flags & DMI_SPAN_PADDING);
    }
    if (record_kept(rec))
        return join_kept_requests(b, index, rec, n_with_tokens);
    b->out->n_short += n_rows < n_real;
    for (uint32_t i = 0; i < step->entry->n_spans && row < n_rows; i++) {
        bool has_row = step->spans[i].n_tokens &&
                       (n_rows >= n_with_tokens || !(step->spans[i].flags & DMI_SPAN_PADDING));
        int r = has_row ? give_last(b, index, step, i, row) : 0;
        if (r)
            return r;
        row += has_row;
    }
    b->out->n_nobody += n_rows - row;
    return 0;
}

int join_record(struct build *b, size_t index)
{
    const struct reader_record *rec = reader_record(b->reader, index);
    uint32_t meaning = reader_site(b->reader, rec->at.site)->row;
    if (rec->step && meaning == DMI_ROW_TOKEN)
        return record_kept(rec) ? join_kept(b, index, rec) : join_tokens(b, index, rec);
    if (rec->step && meaning == DMI_ROW_REQUEST)
        return join_requests(b, index, rec);
    return join_forward(b, index, rec, meaning);
}
