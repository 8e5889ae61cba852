/* SPDX-License-Identifier: Apache-2.0 */
/* One segment, from its first byte to its last: chunks, their metadata, footer and trailer. */
#include "core/cleanup.h"
#include "storage/chunk.h"
#include "storage/hash.h"
#include "storage/reader_private.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define SCAN_BYTES (1u << 20)

static bool is_zero(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i])
            return false;
    return true;
}

static bool valid_header(const struct reader *r, const struct dmi_chunk_header *h)
{
    return h->magic == DMI_CHUNK_MAGIC && h->version == DMI_FORMAT_VERSION &&
           h->type >= DMI_CHUNK_SITES && h->type <= DMI_CHUNK_FOOTER && !h->reserved &&
           h->n_meta <= DMI_MAX_META && h->n_payload <= DMI_MAX_PAYLOAD &&
           (!r->have_uuid || !memcmp(&h->run, r->uuid, sizeof h->run)) &&
           h->hash == hash_bytes(h, offsetof(struct dmi_chunk_header, hash));
}

/* Where the next chunk begins, at or behind @from; @end if there is none. */
static uint64_t scan(const struct reader *r, const struct reader_segment *s, uint64_t from,
                     uint64_t end)
{
    _cleanup_(freep) uint8_t *buffer = malloc(SCAN_BYTES + sizeof(struct dmi_chunk_header));
    const size_t n_header = sizeof(struct dmi_chunk_header);
    while (buffer && from + n_header <= end) {
        size_t n =
            end - from < SCAN_BYTES + n_header ? (size_t)(end - from) : SCAN_BYTES + n_header;
        if (reader_pread(s->fd, buffer, n, from))
            break;
        size_t at = 0;
        for (; at + n_header <= n; at += DMI_CHUNK_ALIGN) {
            uint32_t magic;
            memcpy(&magic, buffer + at, sizeof magic);
            if (magic != DMI_CHUNK_MAGIC)
                continue;
            struct dmi_chunk_header h;
            memcpy(&h, buffer + at, sizeof h);
            if (valid_header(r, &h))
                return from + at;
        }
        from += at;
    }
    return end;
}

/* ------------------------------------------------------------------------- records */

static const char *check_groups(const struct reader_chunk *c, const struct dmi_records_head *head)
{
    uint64_t offset = 0, n_planes = 0;
    for (uint32_t g = 0; g < head->n_groups; g++) {
        const struct dmi_group *group = &c->groups[g];
        uint32_t each = codec_planes(group->encoding, group->element_bytes);
        if (!each)
            return "a group's encoding or element size is not known";
        if (group->n_raw > DMI_MAX_PAYLOAD || group->n_raw % group->element_bytes)
            return "a group's size is senseless";
        if (group->offset != offset || group->first_plane != n_planes)
            return "a group does not follow the one before";
        n_planes += (group->n_raw + DMI_BLOCK_BYTES - 1) / DMI_BLOCK_BYTES * each;
        if (n_planes > head->n_planes)
            return "a group needs more planes than there are";
        uint64_t n_stored = 0;
        for (uint64_t p = group->first_plane; p < n_planes; p++) {
            const struct dmi_plane *plane = &c->planes[p];
            if (plane->n_stored > DMI_BLOCK_BYTES || !is_zero(plane->reserved, 3))
                return "a plane's size is senseless";
            n_stored += plane->n_stored;
        }
        if (n_stored != group->n_stored)
            return "a group's planes do not add up";
        offset += n_stored;
    }
    if (n_planes != head->n_planes || offset != c->header.n_payload)
        return "the groups do not add up";
    return NULL;
}

static const char *check_record(const struct reader *r, const struct reader_chunk *c,
                                const struct dmi_record *rec)
{
    uint64_t n = dmi_dtype_bytes(rec->dtype);
    if (!n)
        return "a record's element type is not known";
    if (rec->n_dims < 1 || rec->n_dims > DMI_MAX_DIMS || rec->reserved)
        return "a record's number of dimensions is senseless";
    for (uint32_t d = 0; d < DMI_MAX_DIMS; d++)
        if (d < rec->n_dims ? __builtin_mul_overflow(n, (uint64_t)rec->dims[d], &n)
                            : rec->dims[d] != 0)
            return "a record's dimensions are senseless";
    if (n != rec->n_bytes)
        return "a record's size is not that of its dimensions";
    if (rec->group >= c->n_groups ||
        c->groups[rec->group].element_bytes != dmi_dtype_bytes(rec->dtype))
        return "a record's group is not there or has other elements";
    if (rec->site >= r->n_sites)
        return "a record's site is not in the dictionary";
    return NULL;
}

/* Records of a group lie one behind the other, so that no byte of it is without an owner. */
static const char *check_records(const struct reader *r, const struct reader_chunk *c,
                                 const struct dmi_record *records)
{
    _cleanup_(freep) uint64_t *used = calloc(c->n_groups + 1, sizeof *used);
    if (!used)
        return "no memory";
    for (uint32_t i = 0; i < c->n_records; i++) {
        const struct dmi_record *rec = &records[i];
        const char *wrong = check_record(r, c, rec);
        if (wrong)
            return wrong;
        if (rec->offset != used[rec->group] ||
            rec->n_bytes > c->groups[rec->group].n_raw - rec->offset)
            return "a record does not follow the one before in its group";
        used[rec->group] += rec->n_bytes;
    }
    for (uint32_t g = 0; g < c->n_groups; g++)
        if (used[g] != c->groups[g].n_raw)
            return "a group holds bytes of no record";
    return NULL;
}

static int take_records(struct reader *r, uint32_t chunk, const char **wrong)
{
    struct reader_chunk *c = &r->chunks[chunk];
    struct dmi_records_head head;
    *wrong = "the tables do not fill the metadata";
    if (c->header.n_meta < sizeof head)
        return 0;
    memcpy(&head, c->meta, sizeof head);
    uint64_t need = sizeof head + (uint64_t)head.n_records * sizeof(struct dmi_record) +
                    (uint64_t)head.n_groups * sizeof(struct dmi_group) +
                    (uint64_t)head.n_planes * sizeof(struct dmi_plane);
    if (head.reserved || need != c->header.n_meta)
        return 0;
    const struct dmi_record *records = (const struct dmi_record *)(c->meta + sizeof head);
    c->groups = (const struct dmi_group *)(records + head.n_records);
    c->planes = (const struct dmi_plane *)(c->groups + head.n_groups);
    c->n_groups = head.n_groups;
    c->n_records = head.n_records;
    if ((*wrong = check_groups(c, &head)) || (*wrong = check_records(r, c, records))) {
        c->n_records = 0;
        return 0;
    }
    for (uint32_t i = 0; i < head.n_records; i++) {
        if (reader_grow((void **)&r->records, r->n_records, &r->records_room, sizeof *r->records))
            return -ENOMEM;
        r->records[r->n_records++] = (struct reader_record){ .at = records[i], .chunk = chunk };
    }
    return 0;
}

/* ------------------------------------------------------------------------- steps */

static bool inside(uint32_t offset, uint32_t n, uint32_t first, uint32_t end)
{
    return n ? offset >= first && offset <= end && n <= end - offset : offset == 0;
}

static bool step_is_sound(const struct dmi_step_entry *e, uint64_t left)
{
    if (e->n_bytes > left || e->n_bytes % DMI_CHUNK_ALIGN || e->n_bytes < sizeof *e ||
        e->n_spans > (e->n_bytes - sizeof *e) / sizeof(struct dmi_span_entry))
        return false;
    uint32_t first = (uint32_t)(sizeof *e + e->n_spans * sizeof(struct dmi_span_entry));
    const struct dmi_span_entry *spans = (const struct dmi_span_entry *)(e + 1);
    for (uint32_t i = 0; i < e->n_spans; i++)
        if (!inside(spans[i].id_offset, spans[i].id_bytes, first, e->n_bytes) ||
            !inside(spans[i].tags_offset, spans[i].tags_bytes, first, e->n_bytes) ||
            spans[i].reserved)
            return false;
    return inside(e->tags_offset, e->tags_bytes, first, e->n_bytes);
}

static int take_steps(struct reader *r, uint32_t chunk, const char **wrong)
{
    const struct reader_chunk *c = &r->chunks[chunk];
    *wrong = "a step's sizes are senseless";
    if (c->header.n_payload)
        return 0;
    for (uint64_t at = 0; at < c->header.n_meta;) {
        const struct dmi_step_entry *e = (const struct dmi_step_entry *)(c->meta + at);
        if (c->header.n_meta - at < sizeof *e || !step_is_sound(e, c->header.n_meta - at))
            return 0;
        if (reader_grow((void **)&r->steps, r->n_steps, &r->steps_room, sizeof *r->steps))
            return -ENOMEM;
        r->steps[r->n_steps++] =
            (struct reader_step){ .entry = e, .spans = (const struct dmi_span_entry *)(e + 1) };
        at += e->n_bytes;
    }
    *wrong = NULL;
    return 0;
}

/* ------------------------------------------------------------------------- footer */

static bool entry_agrees(const struct reader *r, const struct reader_segment *s,
                         const struct dmi_footer_entry *e)
{
    const struct reader_chunk *c = &r->chunks[s->first_chunk + e->chunk];
    const struct dmi_record *records =
        (const struct dmi_record *)(c->meta + sizeof(struct dmi_records_head));
    if (c->header.type != DMI_CHUNK_RECORDS || e->record >= c->n_records)
        return false;
    const struct dmi_record *rec = &records[e->record];
    return rec->site == e->site && rec->layer == e->layer && rec->step == e->step &&
           rec->launch == e->launch;
}

/* The index against what was read: it may only say what is so. */
static const char *check_footer(const struct reader *r, const struct reader_segment *s,
                                const struct reader_chunk *c)
{
    struct dmi_footer f;
    if (c->header.n_meta < sizeof f || c->header.n_payload)
        return "its size is senseless";
    memcpy(&f, c->meta, sizeof f);
    uint64_t need = sizeof f + (uint64_t)f.n_chunks * sizeof(struct dmi_footer_chunk) +
                    (uint64_t)f.n_entries * sizeof(struct dmi_footer_entry) +
                    (uint64_t)f.n_spans * sizeof(struct dmi_footer_span) + f.n_string_bytes;
    if (need != c->header.n_meta || f.reserved || f.first_sequence != s->first_sequence)
        return "its tables do not fill it";
    if (f.n_chunks != r->n_chunks - 1 - s->first_chunk)
        return "it names another number of chunks than were found";
    const struct dmi_footer_chunk *rows = (const struct dmi_footer_chunk *)(c->meta + sizeof f);
    const struct dmi_footer_entry *entries = (const struct dmi_footer_entry *)(rows + f.n_chunks);
    const struct dmi_footer_span *spans = (const struct dmi_footer_span *)(entries + f.n_entries);
    for (uint32_t i = 0; i < f.n_chunks; i++) {
        const struct reader_chunk *there = &r->chunks[s->first_chunk + i];
        if (rows[i].offset != there->offset || rows[i].type != there->header.type)
            return "it names a chunk where there is none";
    }
    if (f.n_entries != s->n_records)
        return "it names another number of records than were found";
    for (uint32_t i = 0; i < f.n_entries; i++)
        if (entries[i].chunk >= f.n_chunks || !entry_agrees(r, s, &entries[i]))
            return "it names a record that is not so";
    for (uint32_t i = 0; i < f.n_spans; i++)
        if (spans[i].id_offset > f.n_string_bytes ||
            spans[i].id_bytes > f.n_string_bytes - spans[i].id_offset)
            return "a string lies outside";
    return NULL;
}

/* ------------------------------------------------------------------------- the walk */

/* Takes one chunk whose header is valid and which ends inside the file. */
static int take_chunk(struct reader *r, struct reader_segment *s,
                      const struct dmi_chunk_header *header, uint64_t offset)
{
    size_t n = (size_t)chunk_pad(header->n_meta);
    _cleanup_(freep) uint8_t *meta = malloc(n + 1);
    if (!meta || reader_grow((void **)&r->chunks, r->n_chunks, &r->chunks_room, sizeof *r->chunks))
        return -ENOMEM;
    const char *what[] = { "", "site dictionary", "steps", "records", "footer" };
    if (reader_pread(s->fd, meta, n, offset + sizeof *header) ||
        hash_bytes(meta, header->n_meta) != header->meta_hash ||
        !is_zero(meta + header->n_meta, n - header->n_meta)) {
        reader_note(r, true, s->name, (int64_t)header->sequence, offset + sizeof *header,
                    "metadata of the chunk (%s) does not match its checksum", what[header->type]);
        free(meta);
        meta = NULL;
    }
    uint32_t index = (uint32_t)r->n_chunks++;
    r->chunks[index] = (struct reader_chunk){
        .segment = (uint32_t)(s - r->segments), .offset = offset, .header = *header, .meta = meta
    };
    s->n_chunks++;
    if (!meta)
        return 0;
    struct reader_chunk *c = &r->chunks[index];
    meta = NULL; /* the chunk's now */
    const char *wrong = NULL;
    int res = 0;
    switch (header->type) {
    case DMI_CHUNK_SITES:
        if (header->n_payload)
            wrong = "it has a payload";
        else
            res = reader_take_dictionary(r, s->name, (const char *)c->meta, header->n_meta);
        break;
    case DMI_CHUNK_STEPS: res = take_steps(r, index, &wrong); break;
    case DMI_CHUNK_RECORDS:
        res = take_records(r, index, &wrong);
        s->n_records += c->n_records;
        break;
    case DMI_CHUNK_FOOTER: wrong = check_footer(r, s, c); break;
    }
    if (wrong)
        reader_note(r, true, s->name, (int64_t)header->sequence, offset + sizeof *header,
                    "the chunk (%s) contradicts itself or its neighbours: %s", what[header->type],
                    wrong);
    return res;
}

static bool read_trailer(const struct reader *r, const struct reader_segment *s,
                         struct dmi_trailer *t)
{
    return s->n_bytes >= sizeof(struct dmi_segment_header) + sizeof *t &&
           !reader_pread(s->fd, t, sizeof *t, s->n_bytes - sizeof *t) &&
           t->magic == DMI_TRAILER_MAGIC &&
           t->hash == hash_two(t, offsetof(struct dmi_trailer, hash), r->uuid, sizeof r->uuid) &&
           t->n_file == s->n_bytes;
}

static void check_sequence(struct reader *r, struct reader_segment *s, uint64_t sequence,
                           uint64_t offset)
{
    if (sequence > s->next_sequence)
        reader_note(r, true, s->name, (int64_t)s->next_sequence, offset,
                    "missing: %" PRIu64 " chunk(s), number %" PRIu64 " to %" PRIu64,
                    sequence - s->next_sequence, s->next_sequence, sequence - 1);
    else if (sequence < s->next_sequence)
        reader_note(r, true, s->name, (int64_t)sequence, offset,
                    "the chunk is out of order: number %" PRIu64 " was expected", s->next_sequence);
}

int reader_walk(struct reader *r, uint32_t segment)
{
    struct reader_segment *s = &r->segments[segment];
    s->first_chunk = r->n_chunks;
    uint64_t at = sizeof(struct dmi_segment_header), end = s->n_bytes;
    if (end < at)
        return 0;
    struct dmi_trailer trailer;
    bool have_trailer = read_trailer(r, s, &trailer), have_footer = false;
    if (have_trailer)
        end -= sizeof trailer;
    uint64_t behind_footer = 0;
    while (at < end) {
        struct dmi_chunk_header h;
        bool whole = end - at >= sizeof h && !reader_pread(s->fd, &h, sizeof h, at);
        if (whole && valid_header(r, &h)) {
            if (chunk_bytes(&h) > end - at)
                break; /* cut off: judged below */
            check_sequence(r, s, h.sequence, at);
            s->next_sequence = h.sequence + 1;
            int res = take_chunk(r, s, &h, at);
            if (res)
                return res;
            at += chunk_bytes(&h);
            have_footer = h.type == DMI_CHUNK_FOOTER;
            behind_footer = have_footer ? at : behind_footer;
            continue;
        }
        if (have_footer && end - at == sizeof trailer && !have_trailer)
            break; /* a trailer that is not so: judged below */
        uint64_t next = scan(r, s, at + DMI_CHUNK_ALIGN, end);
        if (next == end)
            break;
        reader_note(r, true, s->name, (int64_t)s->next_sequence, at,
                    "the header of the chunk is damaged; %" PRIu64
                    " bytes skipped to the next chunk",
                    next - at);
        s->next_sequence++;
        at = next;
    }
    s->closed = have_trailer && have_footer && at == end;
    if (s->closed) {
        if (r->chunks[r->n_chunks - 1].offset != trailer.footer_offset)
            reader_note(r, true, s->name, -1, end,
                        "the trailer points elsewhere than to the footer");
    } else if (have_trailer) {
        reader_note(r, true, s->name, (int64_t)s->next_sequence, at,
                    "the last %" PRIu64 " bytes before the trailer hold no readable chunk: footer "
                    "or chunk damaged; read by scanning",
                    end - at);
        s->next_sequence++;
        s->closed = true;
    } else if (have_footer && behind_footer == at) {
        reader_note(r, true, s->name, -1, at,
                    "the segment has a footer but its trailer is damaged");
        s->closed = true;
    } else {
        s->n_torn = end - at;
    }
    return 0;
}
