/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of a record as an item. */
#include "tools/replay/source.h"

#include "core/err.h"
#include "core/grow.h"
#include "read/record.h"
#include "storage/codec/hash.h"

#include <dmi/dmi.h>
#include <dmi/dtype.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int make_room(uint8_t **buffer, size_t *room, size_t n)
{
    if (n <= *room)
        return 0;
    free(*buffer);
    *buffer = malloc(n);
    *room = *buffer ? n : 0;
    return *buffer ? 0 : -ENOMEM;
}

/* Decodes the record, unless it is the one at hand. */
static int load(struct replay_source *s, size_t index)
{
    const struct reader_record *rec = reader_record(s->reader, index);
    if (index == s->loaded)
        return s->why.code ? -EBADMSG : 0;
    s->loaded = SIZE_MAX;
    s->why = (struct err){ 0 };
    if (make_room(&s->raw, &s->raw_room, rec->at.n_bytes + 1))
        return -ENOMEM;
    int r = reader_decode(&s->why, s->reader, rec, s->raw);
    if (r == -ENOMEM)
        return r;
    s->loaded = index;
    return r ? -EBADMSG : 0;
}

static bool owns(const struct reader_step *step, uint32_t i, const struct item_span *span)
{
    const struct dmi_span_entry *entry = &step->spans[i];
    size_t n_id;
    const char *id = reader_span_id(step, i, &n_id);
    return n_id == span->n_request && span->position >= entry->first_position &&
           span->position - entry->first_position < entry->n_tokens &&
           !memcmp(id, span->request, n_id);
}

/* Rows of neighbours belong to neighbours: the search goes on where it ended. */
static uint32_t phase_of(const struct reader_step *step, const struct item_span *span,
                         uint32_t *hint)
{
    uint32_t n = step ? step->entry->n_spans : 0;
    for (uint32_t k = 0; span->request && k < n; k++) {
        uint32_t i = (*hint + k) % n;
        if (owns(step, i, span)) {
            *hint = i;
            return step->spans[i].phase <= DMI_PHASE_DRAFT ? step->spans[i].phase
                                                           : DMI_PHASE_UNKNOWN;
        }
    }
    return DMI_PHASE_UNKNOWN;
}

static struct item_span span_of(const struct reader_record *rec, const struct source_rows *rows)
{
    const struct stretch *p = &rows->stretch;
    const uint32_t *kept = record_kept(rec);
    uint32_t first = kept && p->n_rows ? kept[p->first_row] : p->first_row;
    return (struct item_span){ .request = rows->request,
                               .n_request = rows->n_request,
                               .position = p->position,
                               .row = p->first_row,
                               .first_row = first,
                               .n_rows = p->n_rows,
                               .flags = p->flags };
}

static bool is_of(const struct source_rows *rows, const char *request, size_t n_request)
{
    return !request || (rows->request && rows->n_request == n_request &&
                        !memcmp(rows->request, request, n_request));
}

/* Where the rows of @out begin in the record: they follow one another; SIZE_MAX: they do not. */
static size_t rows_begin(const struct replay_source *s, const struct source_entry *e,
                         const char *request, size_t n_request)
{
    size_t begin = SIZE_MAX, end = 0;
    for (uint32_t i = 0; i < e->n; i++) {
        const struct source_rows *rows = &s->rows[e->first + i];
        const struct stretch *p = &rows->stretch;
        if (!is_of(rows, request, n_request))
            continue;
        if (begin != SIZE_MAX && p->first_row != end)
            return SIZE_MAX;
        if (begin == SIZE_MAX)
            begin = p->first_row;
        end = (size_t)p->first_row + p->n_rows;
    }
    return begin;
}

static int fill_spans(struct replay_source *s, const struct source_entry *e, const char *request,
                      size_t n_request, struct item *out)
{
    uint32_t hint = 0;
    for (uint32_t i = 0; i < e->n; i++) {
        const struct source_rows *rows = &s->rows[e->first + i];
        if (!is_of(rows, request, n_request))
            continue;
        if (grow((void **)&s->spans, out->n_spans, &s->spans_room, sizeof *s->spans, 64))
            return -ENOMEM;
        struct item_span span = span_of(out->record, rows);
        span.phase = phase_of(out->record->step, &span, &hint);
        s->spans[out->n_spans++] = span;
        out->n_rows += span.n_rows;
    }
    out->spans = s->spans;
    return 0;
}

static void fill_shape(struct item *out)
{
    const struct reader_record *rec = out->record;
    uint32_t n_row_dims = record_row_dims(rec);
    bool all = out->n_rows == record_rows(rec);
    out->width = record_width(rec);
    out->n_data = out->n_rows * out->width * dmi_dtype_bytes(rec->at.dtype);
    for (uint32_t d = all ? 0 : n_row_dims - 1; d < rec->at.n_dims; d++)
        out->dims[out->n_dims++] = rec->at.dims[d];
    if (!all)
        out->dims[0] = out->n_rows;
}

/* Rows that do not follow one another are put together. */
static int gather(struct replay_source *s, const struct source_entry *e, const char *request,
                  size_t n_request, struct item *out)
{
    size_t n_row = out->n_rows ? out->n_data / out->n_rows : 0;
    if (make_room(&s->gathered, &s->gathered_room, out->n_data + 1))
        return -ENOMEM;
    uint8_t *to = s->gathered;
    for (uint32_t i = 0; i < e->n; i++) {
        const struct source_rows *rows = &s->rows[e->first + i];
        const struct stretch *p = &rows->stretch;
        if (!is_of(rows, request, n_request))
            continue;
        memcpy(to, s->raw + p->first_row * n_row, p->n_rows * n_row);
        to += p->n_rows * n_row;
    }
    out->data = s->gathered;
    return 0;
}

int source_fill(struct replay_source *s, const char *request, size_t n_request, struct item *out)
{
    const struct source_entry *e = &s->entries[s->at];
    const struct reader_record *rec = reader_record(s->reader, e->record);
    *out = (struct item){ .kind = ITEM_RECORD,
                          .reader = s->reader,
                          .record = rec,
                          .site = reader_site(s->reader, rec->at.site) };
    int r = fill_spans(s, e, request, n_request, out);
    if (r || !out->n_spans)
        return r;
    fill_shape(out);
    TRY(load(s, e->record));
    size_t begin = rows_begin(s, e, request, n_request);
    if (begin != SIZE_MAX)
        out->data = s->raw + begin * (out->n_rows ? out->n_data / out->n_rows : 0);
    else
        r = gather(s, e, request, n_request, out);
    if (!r)
        out->hash =
            out->n_data == rec->at.n_bytes ? rec->at.hash : hash_bytes(out->data, out->n_data);
    return r;
}
