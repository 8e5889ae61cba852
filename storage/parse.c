/* SPDX-License-Identifier: Apache-2.0 */
#include "storage/parse.h"

#include "core/any.h"
#include "core/cleanup.h"
#include "storage/codec/codec.h"
#include "storage/rows.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <string.h>

bool parse_is_zero(const void *data, size_t n)
{
    const uint8_t *p = data;
    return !ANY(i, n, p[i]);
}

/* ------------------------------------------------------------------------- records */

/* Planes of group @g: from its first_plane on. */
static uint32_t parse_planes(const struct records_view *v, uint32_t g)
{
    uint32_t end = g + 1 < v->n_groups ? v->groups[g + 1].first_plane : v->n_planes;
    return end - v->groups[g].first_plane;
}

/* The planes of a group of an encoding that is known: as many as its blocks need, none too large. */
static const char *check_planes(const struct records_view *v, uint32_t g)
{
    const struct dmi_group *group = &v->groups[g];
    uint32_t each = codec_planes(group->encoding, group->element_bytes);
    if (!each)
        return NULL; /* not known: nothing can be said */
    if (group->n_raw % group->element_bytes)
        return "a group's size is no multiple of its elements'";
    uint64_t n_blocks = (group->n_raw + DMI_BLOCK_BYTES - 1) / DMI_BLOCK_BYTES;
    if (n_blocks * each != parse_planes(v, g))
        return "a group has not as many planes as its blocks need";
    for (uint32_t p = 0; p < n_blocks * each; p++) {
        const struct dmi_plane *plane = &v->planes[group->first_plane + p];
        uint64_t left = group->n_raw - (uint64_t)(p / each) * DMI_BLOCK_BYTES;
        uint64_t n = (left < DMI_BLOCK_BYTES ? left : DMI_BLOCK_BYTES) / each;
        if (plane->n_stored > DMI_BLOCK_BYTES ||
            (plane->codec == DMI_CODEC_RAW && plane->n_stored != n))
            return "a plane's stored size cannot be";
    }
    return NULL;
}

static const char *check_groups(const struct records_view *v, uint64_t n_payload)
{
    uint64_t offset = 0;
    for (uint32_t g = 0; g < v->n_groups; g++) {
        const struct dmi_group *group = &v->groups[g];
        uint32_t end = g + 1 < v->n_groups ? v->groups[g + 1].first_plane : v->n_planes;
        if (group->first_plane > end || end > v->n_planes || (!g && group->first_plane))
            return "the planes of a group do not follow those of the one before";
        if (group->n_raw > DMI_MAX_PAYLOAD || !group->element_bytes)
            return "a group's size cannot be";
        if (group->offset != offset)
            return "a group does not follow the one before";
        uint64_t n_stored = 0;
        for (uint32_t p = group->first_plane; p < end; p++) {
            if (!parse_is_zero(v->planes[p].reserved, sizeof v->planes[p].reserved))
                return "a reserved field of a plane is not 0";
            n_stored += v->planes[p].n_stored;
        }
        if (n_stored != group->n_stored)
            return "the stored sizes of a group's planes do not give the group's";
        const char *wrong = check_planes(v, g);
        if (wrong)
            return wrong;
        offset += n_stored;
    }
    if (!v->n_groups && v->n_planes)
        return "there are planes of no group";
    return offset == n_payload ? NULL : "the groups do not fill the payload";
}

static const char *check_record(const struct records_view *v, const struct dmi_record *rec,
                                size_t n_sites)
{
    if (rec->group >= v->n_groups)
        return "a record's group is not there";
    uint64_t n = v->groups[rec->group].element_bytes, known = dmi_dtype_bytes(rec->dtype);
    uint32_t rows;
    if (!rec->dtype || (known && known != n))
        return "a record's element type is not that of its group";
    if (rec->n_dims < 1 || rec->n_dims > DMI_MAX_DIMS || rec->n_row_dims < 1 ||
        rec->n_row_dims > rec->n_dims)
        return "a record's number of dimensions cannot be";
    if (rec->reserved)
        return "a reserved field of a record is not 0";
    for (uint32_t d = 0; d < DMI_MAX_DIMS; d++)
        if (d < rec->n_dims ? __builtin_mul_overflow(n, (uint64_t)rec->dims[d], &n)
                            : rec->dims[d] != 0)
            return "a record's dimensions cannot be";
    if (n != rec->n_bytes)
        return "a record's size is not that of its dimensions";
    if (!rows_count(rec->dims, rec->n_row_dims, &rows) || (rec->n_kept && rec->n_kept != rows))
        return "a record's number of rows cannot be";
    if (rec->site >= n_sites)
        return "a record's site is not in the dictionary";
    return rec->layer < DMI_NO_LAYER ? "a record's layer is below -1" : NULL;
}

/* Records of a group follow one another, so that each byte of it has one owner; so do kept rows. */
static const char *check_places(const struct records_view *v, uint64_t *used, size_t n_sites)
{
    uint64_t n_kept = 0;
    for (uint32_t i = 0; i < v->n_records; i++) {
        const struct dmi_record *rec = &v->records[i];
        const char *wrong = check_record(v, rec, n_sites);
        if (wrong)
            return wrong;
        if (rec->offset != used[rec->group] ||
            rec->n_bytes > v->groups[rec->group].n_raw - rec->offset)
            return "a record does not follow the one before in its group";
        if (rec->kept != n_kept)
            return "a record's kept rows do not follow those of the one before";
        used[rec->group] += rec->n_bytes;
        n_kept += rec->n_kept;
        if (n_kept > v->n_kept)
            return "a record's kept rows are not there";
    }
    for (uint32_t g = 0; g < v->n_groups; g++)
        if (used[g] != v->groups[g].n_raw)
            return "a group holds bytes of no record";
    return n_kept == v->n_kept ? NULL : "there are kept rows of no record";
}

int parse_records(const uint8_t *meta, uint64_t n_meta, uint64_t n_payload, size_t n_sites,
                  struct records_view *out, const char **wrong)
{
    struct dmi_records_head head;
    *out = (struct records_view){ 0 };
    *wrong = "its tables lie outside of the metadata";
    if (n_meta < sizeof head)
        return 0;
    memcpy(&head, meta, sizeof head);
    uint64_t need = sizeof head + (uint64_t)head.n_records * sizeof(struct dmi_record) +
                    (uint64_t)head.n_groups * sizeof(struct dmi_group) +
                    (uint64_t)head.n_planes * sizeof(struct dmi_plane) +
                    (uint64_t)head.n_kept * sizeof(uint32_t);
    if (need > n_meta)
        return 0;
    struct records_view v = { head.n_records, head.n_groups, head.n_planes, head.n_kept,
                              NULL,           NULL,          NULL,          NULL };
    v.records = (const struct dmi_record *)(const void *)(meta + sizeof head);
    v.groups = (const struct dmi_group *)(v.records + head.n_records);
    v.planes = (const struct dmi_plane *)(v.groups + head.n_groups);
    v.kept = (const uint32_t *)(v.planes + head.n_planes);
    _cleanup_(freep) uint64_t *used = calloc(v.n_groups + 1u, sizeof *used);
    if (!used)
        return -ENOMEM;
    if (!(*wrong = check_groups(&v, n_payload)) && !(*wrong = check_places(&v, used, n_sites)))
        *out = v;
    return 0;
}

/* ------------------------------------------------------------------------- steps */

static bool inside(uint32_t offset, uint32_t n, uint64_t first, uint32_t end)
{
    return n ? offset >= first && offset <= end && n <= end - offset : offset == 0;
}

void parse_span(const uint8_t *entry, uint32_t i, struct dmi_span_entry *out)
{
    struct dmi_step_entry e;
    memcpy(&e, entry, sizeof e);
    *out = (struct dmi_span_entry){ 0 };
    memcpy(out, entry + sizeof e + (uint64_t)i * e.span_bytes,
           e.span_bytes < sizeof *out ? e.span_bytes : sizeof *out);
}

/* Ids of cached tokens: of all of them, or of none. */
static bool ids_fit(const struct dmi_step_entry *e, const struct dmi_span_entry *span,
                    uint64_t strings)
{
    if (!span->n_ids)
        return !span->ids_offset;
    return span->n_ids == span->n_cached && span->n_cached <= span->first_position &&
           span->n_ids <= e->n_bytes / sizeof(int32_t) && !(span->ids_offset % sizeof(int32_t)) &&
           inside(span->ids_offset, span->n_ids * (uint32_t)sizeof(int32_t), strings, e->n_bytes);
}

static const char *check_span(const struct dmi_step_entry *e, const struct dmi_span_entry *span,
                              uint64_t strings)
{
    if (!inside(span->id_offset, span->id_bytes, strings, e->n_bytes) ||
        !inside(span->tags_offset, span->tags_bytes, strings, e->n_bytes))
        return "a span's text lies outside of its step";
    if (span->id_bytes > DMI_MAX_ID || span->tags_bytes > DMI_MAX_TAGS)
        return "a span's text is too long";
    if (!rows_position_fits(span->first_position, span->n_tokens))
        return "a span's positions cannot be";
    return ids_fit(e, span, strings) ? NULL : "the ids of a span's cached tokens cannot be";
}

static const char *check_spans(const struct dmi_step_entry *e, uint64_t strings,
                               struct rows_range *ranges)
{
    for (uint32_t i = 0; i < e->n_spans; i++) {
        struct dmi_span_entry span;
        parse_span((const uint8_t *)e, i, &span);
        const char *wrong = check_span(e, &span, strings);
        if (wrong)
            return wrong;
        ranges[i] = (struct rows_range){ span.first_row, span.n_tokens };
    }
    return rows_disjoint(ranges, e->n_spans, e->n_rows)
               ? NULL
               : "the rows of its spans overlap or lie outside of the batch";
}

int parse_step(const uint8_t *meta, uint64_t n_left, uint64_t *n_bytes, const char **wrong)
{
    const struct dmi_step_entry *e = (const struct dmi_step_entry *)(const void *)meta;
    *n_bytes = 0;
    *wrong = "a step's size cannot be";
    if (n_left < sizeof *e || e->n_bytes < sizeof *e || e->n_bytes > n_left ||
        e->n_bytes % DMI_CHUNK_ALIGN)
        return 0;
    *n_bytes = e->n_bytes;
    uint64_t strings = sizeof *e + (uint64_t)e->n_spans * e->span_bytes;
    if (e->n_spans > DMI_MAX_SPANS || e->span_bytes < DMI_SPAN_ENTRY_LEAST ||
        e->span_bytes % DMI_CHUNK_ALIGN || e->reserved || strings > e->n_bytes ||
        !inside(e->tags_offset, e->tags_bytes, strings, e->n_bytes) ||
        e->tags_bytes > DMI_MAX_TAGS || e->sequence == DMI_NO_STEP) {
        *wrong = "a step's numbers cannot be";
        return 0;
    }
    _cleanup_(freep) struct rows_range *ranges = malloc((e->n_spans + 1u) * sizeof *ranges);
    if (!ranges)
        return -ENOMEM;
    *wrong = check_spans(e, strings, ranges);
    return 0;
}

/* ------------------------------------------------------------------------- outcomes */

void parse_table(const uint8_t *meta, uint64_t n_meta, size_t least, struct table_view *out,
                 const char **wrong)
{
    struct dmi_table_head head;
    *out = (struct table_view){ 0 };
    *wrong = "its tables lie outside of the metadata";
    if (n_meta < sizeof head)
        return;
    memcpy(&head, meta, sizeof head);
    uint64_t n_entries = (uint64_t)head.n_entries * head.entry_bytes;
    if (head.entry_bytes < least || head.entry_bytes % DMI_CHUNK_ALIGN ||
        n_entries > n_meta - sizeof head || head.n_string_bytes > n_meta - sizeof head - n_entries)
        return;
    *wrong = NULL;
    *out = (struct table_view){ .n = head.n_entries,
                                .entry_bytes = head.entry_bytes,
                                .n_string_bytes = head.n_string_bytes,
                                .entries = meta + sizeof head,
                                .strings = meta + sizeof head + n_entries };
}

static bool ascends(const uint8_t *list, uint32_t n)
{
    uint32_t before = 0, row;
    for (uint32_t i = 0; i < n; i++, before = row) {
        memcpy(&row, list + (uint64_t)i * sizeof row, sizeof row);
        if (i && row <= before)
            return false;
    }
    return true;
}

const char *parse_outcome(const struct table_view *v, uint32_t i, struct dmi_outcome *at,
                          const uint8_t **list, const char **id)
{
    memcpy(at, v->entries + (uint64_t)i * v->entry_bytes, sizeof *at);
    *list = NULL;
    *id = (const char *)v->strings + at->id_offset;
    if (at->reserved)
        return "a reserved field of an outcome is not 0";
    if (at->id_bytes > DMI_MAX_ID || !inside(at->id_offset, at->id_bytes, 0, v->n_string_bytes))
        return "an outcome's text lies outside of its strings";
    if (!(at->flags & DMI_OUTCOME_ACCEPTED) || at->accepted == DMI_OUTCOME_FIRST)
        return NULL;
    if (at->accepted > v->n_string_bytes ||
        at->n_accepted > (v->n_string_bytes - at->accepted) / sizeof(uint32_t))
        return "an outcome's rows lie outside of its strings";
    *list = v->strings + at->accepted;
    return ascends(*list, at->n_accepted) ? NULL : "an outcome's rows do not ascend";
}

void parse_each_outcome(const uint8_t *meta, uint64_t n_meta,
                        void (*fn)(void *ctx, const struct dmi_outcome *at, const uint8_t *list,
                                   const char *id),
                        void *ctx)
{
    struct table_view v;
    const char *wrong, *id;
    const uint8_t *list;
    struct dmi_outcome at;
    parse_table(meta, n_meta, sizeof at, &v, &wrong);
    for (uint32_t i = 0; !wrong && i < v.n; i++)
        if (!parse_outcome(&v, i, &at, &list, &id))
            fn(ctx, &at, list, id);
}

/* ------------------------------------------------------------------------- the trace */

void parse_step_times(const struct table_view *v, uint32_t i, struct dmi_step_times *at)
{
    *at = (struct dmi_step_times){ .engine_step = DMI_NO_STEP };
    memcpy(at, v->entries + (uint64_t)i * v->entry_bytes,
           v->entry_bytes < sizeof *at ? v->entry_bytes : sizeof *at);
}

const char *parse_range(const struct table_view *v, uint32_t i, struct dmi_range_entry *at,
                        const char **name, const char **facts)
{
    memcpy(at, v->entries + (uint64_t)i * v->entry_bytes, sizeof *at);
    *name = (const char *)v->strings + at->name_offset;
    *facts = (const char *)v->strings + at->facts_offset;
    return inside(at->name_offset, at->name_bytes, 0, v->n_string_bytes) &&
                   inside(at->facts_offset, at->facts_bytes, 0, v->n_string_bytes)
               ? NULL
               : "a range's text lies outside of its strings";
}

const char *parse_mark(const struct table_view *v, uint32_t i, struct dmi_mark *at,
                       const char **text)
{
    memcpy(at, v->entries + (uint64_t)i * v->entry_bytes, sizeof *at);
    *text = (const char *)v->strings + at->text_offset;
    if (at->reserved)
        return "a reserved field of a mark is not 0";
    return inside(at->text_offset, at->text_bytes, 0, v->n_string_bytes)
               ? NULL
               : "a mark's text lies outside of its strings";
}

/* ------------------------------------------------------------------------- changes */

const char *parse_change(const uint8_t *meta, uint64_t n_left, uint64_t *n_bytes,
                         struct dmi_change_entry *at, const char **json)
{
    *n_bytes = 0;
    if (n_left < sizeof *at)
        return "a change's size cannot be";
    memcpy(at, meta, sizeof *at);
    if (at->n_bytes < sizeof *at || at->n_bytes > n_left || at->n_bytes % DMI_CHUNK_ALIGN)
        return "a change's size cannot be";
    *n_bytes = at->n_bytes;
    *json = (const char *)meta + sizeof *at;
    return at->json_bytes > at->n_bytes - sizeof *at ? "a change's text lies outside of it" : NULL;
}

/* ------------------------------------------------------------------------- footer */

static bool follows(const struct dmi_footer_entry *a, const struct dmi_footer_entry *b)
{
    if (a->site != b->site)
        return a->site < b->site;
    if (a->layer != b->layer)
        return a->layer < b->layer;
    if (a->launch != b->launch)
        return a->launch < b->launch;
    return a->chunk != b->chunk ? a->chunk < b->chunk : a->record < b->record;
}

static const char *check_chunks(const struct footer_view *v, uint64_t offset)
{
    uint64_t n_records = 0, at = sizeof(struct dmi_segment_header);
    for (uint32_t i = 0; i < v->head.n_chunks; i++) {
        const struct dmi_footer_chunk *c = &v->chunks[i];
        if (c->offset < at || c->offset % DMI_CHUNK_ALIGN || c->offset >= offset)
            return "it names a chunk where none can be";
        at = c->offset + sizeof(struct dmi_chunk_header);
        n_records += c->type == DMI_CHUNK_RECORDS ? c->n : 0;
    }
    return n_records == v->head.n_entries ? NULL : "it has not an entry for each record";
}

/* Each record of each chunk has one entry, and the launches are those that the chunks' rows say. */
static const char *check_entries(const struct footer_view *v, struct dmi_footer_chunk *seen)
{
    for (uint32_t i = 0; i < v->head.n_entries; i++) {
        const struct dmi_footer_entry *e = &v->entries[i];
        if (i && !follows(e - 1, e))
            return "its entries are not sorted, or one stands there twice";
        if (e->chunk >= v->head.n_chunks || v->chunks[e->chunk].type != DMI_CHUNK_RECORDS ||
            e->record >= v->chunks[e->chunk].n || e->layer < DMI_NO_LAYER)
            return "it names a record that cannot be";
        struct dmi_footer_chunk *s = &seen[e->chunk];
        s->first = s->n && s->first < e->launch ? s->first : e->launch;
        s->last = s->n && s->last > e->launch ? s->last : e->launch;
        s->n++;
    }
    for (uint32_t i = 0; i < v->head.n_chunks; i++) {
        const struct dmi_footer_chunk *c = &v->chunks[i];
        if (c->type == DMI_CHUNK_RECORDS &&
            (seen[i].n != c->n || (c->n && (seen[i].first != c->first || seen[i].last != c->last))))
            return "a chunk's records or launches are not those of its entries";
    }
    return NULL;
}

static const char *check_sites(const struct footer_view *v, size_t n_sites)
{
    uint32_t at = 0;
    for (uint32_t i = 0; i < v->head.n_sites; i++) {
        const struct dmi_footer_site *s = &v->sites[i];
        uint64_t records = 0, rows = 0;
        if (s->site >= n_sites || s->reserved || (i && s->site <= s[-1].site))
            return "its table of sites cannot be";
        for (; at < v->head.n_entries && v->entries[at].site == s->site; at++) {
            records++;
            rows += v->entries[at].rows;
        }
        if (!records || records != s->records || rows != s->rows)
            return "a site's records or rows are not those of its entries";
    }
    return at == v->head.n_entries ? NULL : "it has entries of a site that it does not name";
}

static const char *check_strings(const struct footer_view *v)
{
    for (uint32_t i = 0; i < v->head.n_spans; i++)
        if (v->spans[i].id_offset > v->head.n_string_bytes ||
            v->spans[i].id_bytes > v->head.n_string_bytes - v->spans[i].id_offset)
            return "a string lies outside";
    return NULL;
}

int parse_footer(const uint8_t *meta, uint64_t n_meta, uint64_t offset, size_t n_sites,
                 struct footer_view *out, const char **wrong)
{
    struct footer_view v = { 0 };
    *out = v;
    *wrong = "its tables lie outside of the metadata";
    if (n_meta < sizeof v.head)
        return 0;
    memcpy(&v.head, meta, sizeof v.head);
    uint64_t need = sizeof v.head + (uint64_t)v.head.n_chunks * sizeof *v.chunks +
                    (uint64_t)v.head.n_sites * sizeof *v.sites +
                    (uint64_t)v.head.n_entries * sizeof *v.entries +
                    (uint64_t)v.head.n_spans * sizeof *v.spans + v.head.n_string_bytes;
    if (need > n_meta || v.head.reserved)
        return 0;
    v.chunks = (const struct dmi_footer_chunk *)(const void *)(meta + sizeof v.head);
    v.sites = (const struct dmi_footer_site *)(v.chunks + v.head.n_chunks);
    v.entries = (const struct dmi_footer_entry *)(v.sites + v.head.n_sites);
    v.spans = (const struct dmi_footer_span *)(v.entries + v.head.n_entries);
    v.strings = (const char *)(v.spans + v.head.n_spans);
    _cleanup_(freep) struct dmi_footer_chunk *seen = calloc(v.head.n_chunks + 1u, sizeof *seen);
    if (!seen)
        return -ENOMEM;
    if (!(*wrong = check_chunks(&v, offset)) && !(*wrong = check_entries(&v, seen)) &&
        !(*wrong = check_sites(&v, n_sites)) && !(*wrong = check_strings(&v)))
        *out = v;
    return 0;
}
