/* SPDX-License-Identifier: Apache-2.0 */
/* One segment, from its first byte to its last: chunks, their metadata, footer and trailer. */
#include "core/cleanup.h"
#include "storage/chunk.h"
#include "storage/hash.h"
#include "storage/reader_private.h"
#include "storage/rows.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define SCAN_BYTES (1u << 20)

/* The header's layout is that of every version from 2 on; what follows it only of this one. */
static bool valid_header(const struct reader *r, const struct dmi_chunk_header *h)
{
    return h->magic == DMI_CHUNK_MAGIC && h->version >= 2 && h->n_meta <= DMI_MAX_META &&
           h->n_payload <= DMI_MAX_PAYLOAD &&
           (!r->have_uuid || !memcmp(&h->run, r->uuid, sizeof h->run)) &&
           h->hash == hash_bytes(h, offsetof(struct dmi_chunk_header, hash));
}

/* Where the next chunk begins, at or after @from; @end if there is none. */
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

/* ------------------------------------------------------------------------- records and steps */

static void note_unknown(struct reader *r, const struct reader_chunk *c)
{
    const char *file = r->segments[c->segment].name;
    for (uint32_t g = 0; g < c->view.n_groups; g++) {
        const struct dmi_group *group = &c->view.groups[g];
        if (!codec_planes(group->encoding, group->element_bytes))
            reader_note_unknown(r, file, (int64_t)c->header.sequence, c->offset,
                                "encoding %u of %u-byte elements is not known here: the records "
                                "of group %u cannot be decoded",
                                group->encoding, group->element_bytes, g);
    }
    for (uint32_t i = 0; i < c->view.n_records; i++)
        if (!dmi_dtype_info(c->view.records[i].dtype))
            reader_note_unknown(r, file, (int64_t)c->header.sequence, c->offset,
                                "element type %u is not known here: record %u is left out",
                                c->view.records[i].dtype, i);
}

static int take_records(struct reader *r, uint32_t chunk, const char **wrong)
{
    struct reader_chunk *c = &r->chunks[chunk];
    int res =
        parse_records(c->meta, c->header.n_meta, c->header.n_payload, r->n_sites, &c->view, wrong);
    if (res || *wrong)
        return res;
    note_unknown(r, c);
    for (uint32_t i = 0; i < c->view.n_records; i++) {
        if (!dmi_dtype_info(c->view.records[i].dtype))
            continue;
        if (reader_grow((void **)&r->records, r->n_records, &r->records_room, sizeof *r->records))
            return -ENOMEM;
        const struct dmi_record *at = &c->view.records[i];
        struct reader_record rec = { .at = *at, .chunk = chunk };
        rows_count(at->dims, at->n_row_dims, &rec.n_rows);
        rec.kept = at->n_kept ? c->view.kept + at->kept : NULL;
        r->records[r->n_records++] = rec;
    }
    return 0;
}

static int take_steps(struct reader *r, uint32_t chunk, const char **wrong)
{
    const struct reader_chunk *c = &r->chunks[chunk];
    const char *first_wrong = c->header.n_payload ? "it has a payload" : NULL;
    uint64_t n = 0;
    for (uint64_t at = 0; at < c->header.n_meta && !c->header.n_payload; at += n) {
        int res = parse_step(c->meta + at, c->header.n_meta - at, &n, wrong);
        if (res)
            return res;
        const struct dmi_step_entry *e = (const struct dmi_step_entry *)(c->meta + at);
        if (!*wrong) {
            if (reader_grow((void **)&r->steps, r->n_steps, &r->steps_room, sizeof *r->steps))
                return -ENOMEM;
            r->steps[r->n_steps++] =
                (struct reader_step){ .entry = e, .spans = (const struct dmi_span_entry *)(e + 1) };
        } else if (!first_wrong) {
            first_wrong = *wrong;
        }
        if (!n)
            break;
    }
    *wrong = first_wrong;
    return 0;
}

/* ------------------------------------------------------------------------- footer */

/*
 * The index against what was read: the writer's own code makes it again from the chunks that were found.
 * Where some of them could not be read, they are the damage, and the index cannot be judged.
 */
static int check_footer(const struct reader *r, struct reader_segment *s,
                        const struct reader_chunk *c, const char **wrong)
{
    struct footer_view v;
    int res = parse_footer(c->meta, c->header.n_meta, c->offset, r->n_sites, &v, wrong);
    if (res || *wrong || s->lost)
        return res;
    struct chunk again;
    res = footer_chunk(&s->index, s->first_sequence, &again);
    if (res)
        return res;
    if (c->header.n_meta < again.header.n_meta || memcmp(c->meta, again.meta, again.header.n_meta))
        *wrong = "it is not the index of the chunks before it";
    chunk_deinit(&again);
    return 0;
}

/* ------------------------------------------------------------------------- the walk */

static const char *chunk_name(const struct dmi_chunk_header *header)
{
    static const char *const names[] = { "unknown", "site dictionary", "steps", "records",
                                         "footer" };
    return header->version == DMI_FORMAT_VERSION && header->type <= DMI_CHUNK_FOOTER
               ? names[header->type]
               : names[0];
}

static int index_chunk(struct reader_segment *s, const struct reader_chunk *c)
{
    const struct chunk chunk = { .header = c->header, .meta = c->meta };
    int res = footer_add(&s->index, &chunk, c->offset);
    if (!res)
        footer_count(&s->index, &chunk);
    s->lost |= res == -E2BIG;
    return res == -E2BIG ? 0 : res;
}

/* Takes one chunk whose header is valid and which ends inside the file. */
static int take_chunk(struct reader *r, struct reader_segment *s,
                      const struct dmi_chunk_header *header, uint64_t offset)
{
    size_t n = (size_t)chunk_pad(header->n_meta);
    _cleanup_(freep) uint8_t *meta = malloc(n + 1);
    if (!meta || reader_grow((void **)&r->chunks, r->n_chunks, &r->chunks_room, sizeof *r->chunks))
        return -ENOMEM;
    const char *what = chunk_name(header);
    if (reader_pread(s->fd, meta, n, offset + sizeof *header) ||
        hash_bytes(meta, header->n_meta) != header->meta_hash ||
        !parse_is_zero(meta + header->n_meta, n - header->n_meta)) {
        reader_note(r, true, s->name, (int64_t)header->sequence, offset + sizeof *header,
                    "metadata of the chunk (%s) does not match its checksum", what);
        free(meta);
        meta = NULL;
        s->lost = true;
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
    if (header->version != DMI_FORMAT_VERSION) {
        reader_note_unknown(r, s->name, (int64_t)header->sequence, offset,
                            "the chunk has format version %u, newer than this program's, which "
                            "reads version %d: skipped",
                            header->version, DMI_FORMAT_VERSION);
        s->lost = true;
        return 0;
    }
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
        s->n_records += c->view.n_records;
        break;
    case DMI_CHUNK_FOOTER:
        if (header->n_payload)
            wrong = "it has a payload";
        else
            res = check_footer(r, s, c, &wrong);
        break;
    default:
        reader_note_unknown(r, s->name, (int64_t)header->sequence, offset,
                            "chunk type %u is not known here: skipped", header->type);
    }
    if (!wrong && !res && header->type != DMI_CHUNK_FOOTER)
        res = index_chunk(s, c);
    s->lost |= wrong != NULL;
    if (wrong)
        reader_note(r, true, s->name, (int64_t)header->sequence, offset + sizeof *header,
                    "the chunk (%s) contradicts itself or its neighbours: %s", what, wrong);
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
    s->lost |= sequence != s->next_sequence;
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
    uint64_t after_footer = 0;
    while (at < end) {
        struct dmi_chunk_header h;
        bool fits = end - at >= sizeof h && !reader_pread(s->fd, &h, sizeof h, at);
        if (fits && valid_header(r, &h)) {
            uint64_t next = chunk_bytes(&h) > end - at ? scan(r, s, at + DMI_CHUNK_ALIGN, end) : 0;
            if (next == end)
                break; /* cut off, and nothing after it: judged below */
            if (next) {
                reader_note(r, true, s->name, (int64_t)h.sequence, at,
                            "the chunk ends after the file's end, and other chunks follow it: "
                            "%" PRIu64 " bytes skipped",
                            next - at);
                s->next_sequence = h.sequence + 1;
                s->lost = true;
                at = next;
                continue;
            }
            check_sequence(r, s, h.sequence, at);
            s->next_sequence = h.sequence + 1;
            int res = take_chunk(r, s, &h, at);
            if (res)
                return res;
            at += chunk_bytes(&h);
            have_footer = h.type == DMI_CHUNK_FOOTER;
            after_footer = have_footer ? at : after_footer;
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
        s->lost = true;
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
    } else if (have_footer && after_footer == at) {
        reader_note(r, true, s->name, -1, at,
                    "the segment has a footer but its trailer is damaged");
        s->closed = true;
    } else {
        s->n_torn = end - at;
    }
    return 0;
}
