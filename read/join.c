/* SPDX-License-Identifier: Apache-2.0 */
/* Whose token a row of a record is: the rule of docs/format.md 6. */
#include "read/tensors_private.h"

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
        f[i] = (struct forward){ rec->at.forward, token ? rec->at.dims[0] : 0, 0 };
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
            b->out->n_short += rec->at.dims[0] < f->n_tokens;
        request = b->query->implied;
    }
    return tensors_add(b, index, request, request ? strlen(request) : 0, 0, rec->at.dims[0],
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

/* Rows that are tokens: each span takes its own. */
static int join_tokens(struct build *b, size_t index, const struct reader_record *rec)
{
    uint32_t n_rows = rec->at.dims[0], owned = 0;
    bool is_short = false;
    for (uint32_t i = 0; i < rec->step->entry->n_spans; i++) {
        const struct dmi_span_entry *span = &rec->step->spans[i];
        if (span->flags & DMI_SPAN_PADDING)
            continue;
        uint32_t room = span->first_row < n_rows ? n_rows - span->first_row : 0;
        uint32_t n = span->n_tokens < room ? span->n_tokens : room;
        is_short |= n < span->n_tokens;
        size_t n_id;
        const char *id = request_of(b, rec->step, i, &n_id);
        int r = n ? tensors_add(b, index, id, n_id, span->first_row, n, span->first_position) : 0;
        if (r)
            return r;
        owned += n;
    }
    b->out->n_short += is_short;
    b->out->n_nobody += owned < n_rows ? n_rows - owned : 0;
    return 0;
}

/* A row a request, in the order of the spans: the token that it stands for is the span's last. */
static int join_requests(struct build *b, size_t index, const struct reader_record *rec)
{
    const struct dmi_step_entry *e = rec->step->entry;
    uint32_t n_rows = rec->at.dims[0], n_real = 0, row = 0;
    for (uint32_t i = 0; i < e->n_spans; i++)
        n_real += !(rec->step->spans[i].flags & DMI_SPAN_PADDING);
    bool padded = n_rows >= e->n_spans; /* else padding has no rows here */
    b->out->n_short += n_rows < n_real;
    for (uint32_t i = 0; i < e->n_spans && row < n_rows; i++) {
        const struct dmi_span_entry *span = &rec->step->spans[i];
        if (span->flags & DMI_SPAN_PADDING) {
            row += padded;
            continue;
        }
        size_t n_id;
        const char *id = request_of(b, rec->step, i, &n_id);
        int64_t position = (int64_t)((uint64_t)span->first_position + span->n_tokens - 1u);
        int r = tensors_add(b, index, id, n_id, row++, 1, position);
        if (r)
            return r;
    }
    b->out->n_nobody += n_rows - (row < n_real ? row : n_real);
    return 0;
}

int join_record(struct build *b, size_t index)
{
    const struct reader_record *rec = reader_record(b->reader, index);
    uint32_t meaning = reader_site(b->reader, rec->at.site)->row;
    if (rec->step && meaning == DMI_ROW_TOKEN)
        return join_tokens(b, index, rec);
    if (rec->step && meaning == DMI_ROW_REQUEST)
        return join_requests(b, index, rec);
    return join_forward(b, index, rec, meaning);
}
