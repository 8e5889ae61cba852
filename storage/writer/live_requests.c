/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of requests in `live`: whose rows came to the disk, of the latest steps. It goes by what is written anyway, in
 * the thread that writes it, so that neither a launch nor a step of the engine does anything for it. Memory is bounded:
 * rows of a step that was forgotten are counted as stray.
 */
#include "core/any.h"
#include "core/atomic.h"
#include "core/sorted.h"
#include "storage/codec/hash.h"
#include "storage/parse.h"
#include "storage/rows.h"
#include "storage/writer/live.h"

#include <dmi/dmi.h>

#include <stdlib.h>
#include <string.h>

#define N_STEPS 1024u  /* remembered, at most */
#define N_SPANS 32768u /* of all of them */

/* The private half of an entry: what the file says of ids is not read back. */
struct live_entry {
    uint64_t used; /* counts steps: which is the oldest */
    uint32_t generation;
    bool ended, dirty;
    struct dmi_live_request is; /* as it is published */
};

struct span_note {
    uint32_t first_row, n_tokens;
    uint32_t ordinal; /* among the spans with tokens, and among those that are no padding */
    uint32_t ordinal_unpadded;
    uint32_t entry, generation;
};

struct step_note {
    uint64_t sequence;
    uint64_t first; /* running number of its first span */
    uint32_t n;     /* spans of requests */
    uint32_t n_all; /* spans with tokens, padding too */
    bool known;
    bool in_order; /* by their rows */
};

struct live_requests {
    struct dmi_live *map;
    uint8_t *rows; /* per site enum dmi_row */
    uint32_t n_sites;
    uint64_t n_steps, n_spans; /* running counts */
    uint64_t
        hashes[DMI_LIVE_REQUESTS]; /* of ids, beside one another: all are looked at for each span */
    struct live_entry entries[DMI_LIVE_REQUESTS];
    struct step_note steps[N_STEPS]; /* by sequence */
    struct span_note spans[N_SPANS]; /* by running number */
};

struct live_requests *live_requests_new(struct dmi_live *map, const uint8_t *rows, uint32_t n_sites)
{
    struct live_requests *q = calloc(1, sizeof *q);
    uint8_t *copy = malloc(n_sites + 1u);
    if (!q || !copy) {
        free(q);
        free(copy);
        return NULL;
    }
    memcpy(copy, rows, n_sites);
    q->map = map;
    q->rows = copy;
    q->n_sites = n_sites;
    return q;
}

void live_requests_free(struct live_requests *q)
{
    if (q)
        free(q->rows);
    free(q);
}

/* ------------------------------------------------------------------------- entries */

/* A reader that sees the same even sequence before and after has an entry of one moment. */
static void publish(struct live_requests *q, uint32_t i)
{
    struct dmi_live_request *to = &q->map->requests[i], *from = &q->entries[i].is;
    uint64_t sequence = from->sequence + 2;
    atomic_exchange_acq_rel(&to->sequence, sequence - 1); /* what follows stays after it */
    memcpy(&to->first_step, &from->first_step, sizeof *to - sizeof to->sequence);
    atomic_store_release(&to->sequence, sequence);
    from->sequence = sequence;
    q->entries[i].dirty = false;
}

static void publish_all(struct live_requests *q)
{
    for (uint32_t i = 0; i < DMI_LIVE_REQUESTS; i++)
        if (q->entries[i].dirty)
            publish(q, i);
}

static bool is_id(const struct live_entry *e, const char *id, uint32_t n_id)
{
    return e->is.state != DMI_LIVE_REQUEST_FREE && e->is.n_id == n_id &&
           !memcmp(e->is.id, id, n_id);
}

/* Return: NULL where there is none. */
static struct live_entry *find(struct live_requests *q, const char *id, uint32_t n_id)
{
    uint64_t hash = hash_bytes(id, n_id);
    return FIRST(i, DMI_LIVE_REQUESTS, q->hashes[i] == hash && is_id(&q->entries[i], id, n_id),
                 &q->entries[i], NULL);
}

/* One that is free, or that was in no step for the longest time. */
static struct live_entry *oldest(struct live_requests *q)
{
    struct live_entry *e = &q->entries[0];
    for (uint32_t i = 1; i < DMI_LIVE_REQUESTS; i++)
        if (q->entries[i].used < e->used)
            e = &q->entries[i];
    return e;
}

static void begin(struct live_requests *q, struct live_entry *e, const char *id, uint32_t n_id,
                  const struct dmi_step_entry *step)
{
    uint64_t sequence = e->is.sequence;
    q->hashes[e - q->entries] = hash_bytes(id, n_id);
    *e = (struct live_entry){ .generation = e->generation + 1,
                              .is = { .sequence = sequence,
                                      .first_step = step->sequence,
                                      .begin_ns = step->time_ns,
                                      .state = DMI_LIVE_REQUEST_RUNS,
                                      .n_id = n_id } };
    memcpy(e->is.id, id, n_id);
    atomic_add_relaxed(&q->map->requests_seen, 1);
}

static struct live_entry *take(struct live_requests *q, const char *id, uint32_t n_id,
                               const struct dmi_step_entry *step)
{
    struct live_entry *e = find(q, id, n_id);
    if (!e || e->ended) {
        e = e ? e : oldest(q);
        begin(q, e, id, n_id, step);
    }
    e->used = q->n_steps;
    e->is.last_step = step->sequence;
    e->is.last_ns = step->time_ns;
    e->dirty = true;
    return e;
}

/* ------------------------------------------------------------------------- steps */

static void add_span(struct live_requests *q, struct step_note *note, const struct live_entry *e,
                     const struct dmi_span_entry *span, uint32_t ordinal)
{
    struct span_note *to = &q->spans[q->n_spans % N_SPANS];
    const struct span_note *before = &q->spans[(q->n_spans - 1) % N_SPANS];
    if (note->n && before->first_row > span->first_row)
        note->in_order = false;
    *to = (struct span_note){ .first_row = span->first_row,
                              .n_tokens = span->n_tokens,
                              .ordinal = ordinal,
                              .ordinal_unpadded = note->n,
                              .entry = (uint32_t)(e - q->entries),
                              .generation = e->generation };
    q->n_spans++;
    note->n++;
}

static void note_step(struct live_requests *q, const uint8_t *meta, const struct dmi_step_entry *at)
{
    struct step_note *note = &q->steps[at->sequence % N_STEPS];
    *note = (struct step_note){ at->sequence, q->n_spans, .known = true, .in_order = true };
    q->n_steps++;
    for (uint32_t i = 0; i < at->n_spans; i++) {
        struct dmi_span_entry span;
        parse_span(meta, i, &span);
        bool padding = span.flags & DMI_SPAN_PADDING;
        if (!padding) {
            struct live_entry *e = take(q, (const char *)meta + span.id_offset, span.id_bytes, at);
            e->is.n_tokens += span.n_tokens;
            e->ended = span.flags & DMI_SPAN_LAST;
            if (e->ended && e->is.state != DMI_LIVE_REQUEST_SHED)
                e->is.state = DMI_LIVE_REQUEST_ENDED;
            if (span.n_tokens)
                add_span(q, note, e, &span, note->n_all);
        }
        note->n_all += span.n_tokens != 0;
    }
}

static void live_steps(struct live_requests *q, const struct chunk *chunk)
{
    struct dmi_step_entry at;
    for (size_t from = 0; from < chunk->header.n_meta; from += at.n_bytes) {
        memcpy(&at, chunk->meta + from, sizeof at);
        note_step(q, chunk->meta + from, &at);
    }
}

/* NULL: it was forgotten. */
static const struct step_note *find_step(const struct live_requests *q, uint64_t sequence)
{
    const struct step_note *s = &q->steps[sequence % N_STEPS];
    return s->known && s->sequence == sequence && q->n_spans - s->first <= N_SPANS ? s : NULL;
}

/* ------------------------------------------------------------------------- outcomes */

static void note_outcome(void *ctx, const struct dmi_outcome *at, const uint8_t *list,
                         const char *id)
{
    struct live_requests *q = ctx;
    (void)list;
    bool shed = at->flags & DMI_OUTCOME_SHED;
    if (shed)
        atomic_add_relaxed(&q->map->requests_shed, 1);
    struct live_entry *e =
        at->flags & (DMI_OUTCOME_SHED | DMI_OUTCOME_END) ? find(q, id, at->id_bytes) : NULL;
    if (!e)
        return;
    e->ended = e->ended || !shed;
    if (e->is.state != DMI_LIVE_REQUEST_SHED)
        e->is.state = shed ? DMI_LIVE_REQUEST_SHED : DMI_LIVE_REQUEST_ENDED;
    e->dirty = true;
}

static void live_outcomes(struct live_requests *q, const struct chunk *chunk)
{
    parse_each_outcome(chunk->meta, chunk->header.n_meta, note_outcome, q);
}

/* ------------------------------------------------------------------------- records */

static void add_rows(struct live_requests *q, const struct span_note *span, uint32_t n,
                     uint64_t row_bytes)
{
    struct live_entry *e = &q->entries[span->entry];
    if (!n || e->generation != span->generation)
        return; /* it was forgotten */
    e->is.rows += n;
    e->is.bytes += n * row_bytes;
    e->dirty = true;
}

static const struct span_note *span_at(const struct live_requests *q, const struct step_note *step,
                                       uint32_t i)
{
    return &q->spans[(step->first + i) % N_SPANS];
}

/* The first row of span @i among those of a record: of the batch, or (@by_request) one a span. */
static uint32_t first_of(const struct span_note *s, bool by_request, bool unpadded)
{
    return !by_request ? s->first_row : unpadded ? s->ordinal_unpadded : s->ordinal;
}

/* The last span that begins at @row or before. Return: NULL where it is nobody's. */
static const struct span_note *owner(const struct live_requests *q, const struct step_note *step,
                                     bool by_request, uint32_t row)
{
    uint32_t i;
    SEARCH(i, step->n, first_of(span_at(q, step, i), by_request, false) <= row);
    const struct span_note *s = i ? span_at(q, step, i - 1) : NULL;
    return s && row - first_of(s, by_request, false) < (by_request ? 1 : s->n_tokens) ? s : NULL;
}

/* A record with all rows of its tensor, @n of them. */
static void note_all(struct live_requests *q, const struct step_note *step, bool by_request,
                     uint32_t n, uint64_t row_bytes)
{
    bool unpadded = n < step->n_all; /* docs/format.md 8: then padding spans have no row */
    for (uint32_t i = 0; i < step->n; i++) {
        const struct span_note *s = span_at(q, step, i);
        uint32_t from = first_of(s, by_request, unpadded), rows = by_request ? 1 : s->n_tokens;
        if (from < n)
            add_rows(q, s, rows < n - from ? rows : n - from, row_bytes);
    }
}

static void note_record(struct live_requests *q, const struct dmi_record *rec, const uint8_t *kept)
{
    const struct step_note *step = rec->step == DMI_NO_STEP ? NULL : find_step(q, rec->step);
    uint32_t kind = rec->site < q->n_sites ? q->rows[rec->site] : DMI_ROW_NONE, n, row;
    bool by_request = kind == DMI_ROW_REQUEST;
    if (kind == DMI_ROW_NONE || rec->step == DMI_NO_STEP ||
        !rows_count(rec->dims, rec->n_row_dims, &n) || !n)
        return;
    if (!step || (rec->n_kept && !step->in_order)) {
        atomic_add_relaxed(&q->map->stray_rows, n);
        return;
    }
    if (!rec->n_kept)
        note_all(q, step, by_request, n, rec->n_bytes / n);
    for (uint32_t i = 0; i < rec->n_kept; i++) {
        memcpy(&row, kept + (rec->kept + (size_t)i) * sizeof row, sizeof row);
        const struct span_note *s = owner(q, step, by_request, row);
        if (s)
            add_rows(q, s, 1, rec->n_bytes / n);
    }
}

static void live_records(struct live_requests *q, const struct chunk *chunk)
{
    struct dmi_records_head head;
    struct dmi_record rec;
    memcpy(&head, chunk->meta, sizeof head);
    const uint8_t *records = chunk->meta + sizeof head;
    const uint8_t *kept = records + head.n_records * sizeof(struct dmi_record) +
                          head.n_groups * sizeof(struct dmi_group) +
                          head.n_planes * sizeof(struct dmi_plane);
    for (uint32_t i = 0; i < head.n_records; i++) {
        memcpy(&rec, records + i * sizeof rec, sizeof rec);
        note_record(q, &rec, kept);
    }
}

static void (*const live_of[])(struct live_requests *q, const struct chunk *chunk) = {
#define CHUNK_TYPE(type, of, name, payload, index, repeat, live, ...) [DMI_CHUNK_##type] = live,
#include "storage/chunk_types.def"
};

void live_requests_note(struct live_requests *q, const struct chunk *chunk)
{
    uint32_t type = chunk->header.type;
    if (type < sizeof live_of / sizeof live_of[0] && live_of[type])
        live_of[type](q, chunk);
    publish_all(q);
}
