/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A segment chunk by chunk: one that is not closed, whose footer does not hold, or that nobody trusts. A walk
 * goes on where the one before ended, so that a growing segment is read once.
 */
#include "core/cleanup.h"
#include "core/err.h"
#include "storage/chunk.h"
#include "storage/reader/reader_private.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define SCAN_BYTES (1u << 20)

/* Where the next chunk begins, at or after @from; @end if there is none. Holes are passed over. */
static uint64_t scan(struct reader *r, struct reader_segment *s, uint64_t from, uint64_t end)
{
    _cleanup_(freep) uint8_t *buffer = malloc(SCAN_BYTES + sizeof(struct dmi_chunk_header));
    const size_t n_header = sizeof(struct dmi_chunk_header);
    while (buffer && from < end && end - from >= n_header) {
        uint64_t data = reader_skip_hole(r, s, from);
        if (data >= end)
            break;
        from = data / DMI_CHUNK_ALIGN * DMI_CHUNK_ALIGN > from
                   ? data / DMI_CHUNK_ALIGN * DMI_CHUNK_ALIGN
                   : from;
        size_t n =
            end - from < SCAN_BYTES + n_header ? (size_t)(end - from) : SCAN_BYTES + n_header;
        if (reader_read(r, s, buffer, n, from))
            break;
        size_t at = 0;
        for (; at + n_header <= n; at += DMI_CHUNK_ALIGN) {
            struct dmi_chunk_header h;
            memcpy(&h, buffer + at, sizeof h);
            if (h.magic == DMI_CHUNK_MAGIC && reader_header_valid(r, &h))
                return from + at;
        }
        from += at;
    }
    return end;
}

/* ------------------------------------------------------------------------- one chunk */

static struct reader_chunk *add_chunk(struct reader_segment *s, const struct dmi_chunk_header *h,
                                      uint64_t offset)
{
    if (GROW(s->chunks, s->n_chunks, s->chunks_room))
        return NULL;
    struct reader_chunk *c = &s->chunks[s->n_chunks++];
    *c = (struct reader_chunk){ .offset = offset, .sequence = h->sequence, .type = h->type };
    return c;
}

/* The row that the footer will have for it. Return: 0 or -ENOMEM. */
static int index_chunk(struct reader_segment *s, struct reader_chunk *c,
                       const struct dmi_chunk_header *h, uint8_t *meta)
{
    const struct chunk chunk = { .header = *h, .meta = meta };
    int res = footer_add(&s->index, &chunk, c->offset);
    if (res)
        return -ENOMEM;
    footer_count(&s->index, &chunk);
    const struct dmi_footer_chunk *row =
        (const struct dmi_footer_chunk *)(void *)(s->index.chunks.data +
                                                  (s->n_chunks - 1) * sizeof *row);
    c->n = row->n;
    c->first = row->first;
    c->last = row->last;
    bool others = s->n_chunks > 1;
    s->first_chunk = others && s->first_chunk < h->sequence ? s->first_chunk : h->sequence;
    s->end_chunk = others && s->end_chunk > h->sequence ? s->end_chunk : h->sequence + 1;
    return 0;
}

/* The chunk is listed last. Return: 0 (*@wrong says what, if anything is), -errno (memory). Takes over @meta. */
static int take_records(struct reader *r, struct reader_segment *s, struct reader_chunk *c,
                        const struct dmi_chunk_header *h, uint8_t *meta, const char **wrong)
{
    int res = reader_keep_meta(r, c, h, meta, wrong);
    if (!res)
        res = index_chunk(s, c, h, meta);
    if (!res)
        reader_note_strange(r, s, c, &c->meta->view);
    else if (!c->meta)
        s->n_chunks--;
    return *wrong ? 0 : res;
}

static int take_steps(struct reader *r, struct reader_segment *s, struct reader_chunk *c,
                      const struct dmi_chunk_header *h, uint8_t *meta, const char **wrong)
{
    (void)r;
    int res = reader_take_steps(c, h->n_meta, meta, wrong);
    if (!res && !*wrong)
        return index_chunk(s, c, h, meta);
    s->lost = true; /* its steps that are sound are used, and the footer cannot be judged */
    if (res || !c->n_held) {
        reader_free_held(c);
        s->n_chunks--;
        return res;
    }
    const char *sound;
    struct text all = { 0 };
    for (size_t i = 0; i < c->n_held; i++)
        text_add(&all, (const char *)c->steps[i].entry, c->steps[i].entry->n_bytes);
    struct dmi_chunk_header part = *h;
    part.n_meta = all.n;
    reader_free_held(c);
    if (all.failed) {
        text_deinit(&all);
        return -ENOMEM;
    }
    res = reader_take_steps(c, all.n, (uint8_t *)all.data, &sound);
    return res ? res : index_chunk(s, c, &part, c->bytes);
}

/* Outcomes, changes, step times and marks: one that contradicts itself is left out, and named; the footer has nothing of it. */
static int take_entries(struct reader *r, struct reader_segment *s, struct reader_chunk *c,
                        const struct dmi_chunk_header *h, uint8_t *meta, const char **wrong)
{
    (void)r;
    int res = reader_adopt(c, h->n_meta, meta, wrong);
    if (!res && c->bytes)
        return index_chunk(s, c, h, c->bytes); /* which looks at nothing of it */
    s->lost = true;
    s->n_chunks--;
    return res;
}

/* Likewise of the trace and of packed steps, which may be most of the run: it is read again when it is asked for, unless something of it was left out. */
static int take_again(struct reader *r, struct reader_segment *s, struct reader_chunk *c,
                      const struct dmi_chunk_header *h, uint8_t *meta, const char **wrong)
{
    int res = take_entries(r, s, c, h, meta, wrong);
    if (!res && !*wrong && c->bytes)
        reader_free_held(c);
    return res;
}

/*
 * The footer against what was read: the writer's own code makes it again from the chunks that were found.
 * Where some of them could not be read, they are the damage, and the footer cannot be judged.
 */
static int check_footer(struct reader *r, struct reader_segment *s,
                        const struct dmi_chunk_header *h, uint64_t offset, const uint8_t *meta,
                        const char **wrong)
{
    struct footer_view v;
    int res = parse_footer(meta, h->n_meta, offset, r->said.n_sites, &v, wrong);
    if (res || *wrong || s->lost)
        return res;
    struct chunk again;
    TRY(footer_chunk(&s->index, s->first_sequence, &again));
    if (h->n_meta < again.header.n_meta || memcmp(meta, again.meta, again.header.n_meta))
        *wrong = "it is not the index of the chunks before it";
    chunk_deinit(&again);
    return 0;
}

static int take_dictionary(struct reader *r, struct reader_segment *s, struct reader_chunk *c,
                           const struct dmi_chunk_header *h, uint8_t *meta, const char **wrong)
{
    _cleanup_(freep) uint8_t *owned = meta;
    (void)wrong;
    int res = reader_take_dictionary(r, s->name, (const char *)owned, h->n_meta);
    return res ? res : index_chunk(s, c, h, owned);
}

/* It is no chunk of its own index. */
static int take_footer(struct reader *r, struct reader_segment *s, struct reader_chunk *c,
                       const struct dmi_chunk_header *h, uint8_t *meta, const char **wrong)
{
    _cleanup_(freep) uint8_t *owned = meta;
    s->n_chunks--;
    int res = check_footer(r, s, h, c->offset, owned, wrong);
    s->footer_holds = !res && !*wrong && !s->lost;
    return res;
}

/* A take function owns @meta; *@wrong says what contradicts what. */
static int (*const take_of[])(struct reader *r, struct reader_segment *s, struct reader_chunk *c,
                              const struct dmi_chunk_header *h, uint8_t *meta,
                              const char **wrong) = {
#define CHUNK_TYPE(type, of, name, payload, index, repeat, live, adopt, take)                      \
    [DMI_CHUNK_##type] = take,
#include "storage/chunk_types.def"
};

static int take_meta(struct reader *r, struct reader_segment *s, const struct dmi_chunk_header *h,
                     uint64_t offset, uint8_t *meta, const char **wrong)
{
    _cleanup_(freep) uint8_t *owned = meta;
    bool known = chunk_type_known(h->type);
    if (known && h->n_payload && !chunk_type_has_payload(h->type)) {
        *wrong = "it has a payload";
        return 0;
    }
    struct reader_chunk *c = add_chunk(s, h, offset);
    if (!c)
        return -ENOMEM;
    size_t n = s->n_chunks;
    if (known) {
        int res = take_of[h->type](r, s, c, h, steal_ptr(owned), wrong);
        c->in_part = s->n_chunks == n && *wrong;
        return res;
    }
    reader_note_unknown(&r->notes, s->name, (int64_t)h->sequence, offset,
                        "chunk type %u is not known here: skipped", h->type);
    return index_chunk(s, c, h, owned);
}

/* Takes one chunk whose header is valid and which ends inside the file. */
static int take_chunk(struct reader *r, struct reader_segment *s, const struct dmi_chunk_header *h,
                      uint64_t offset)
{
    uint8_t *meta = NULL;
    const char *wrong = NULL;
    s->n_seen++;
    if (h->version != DMI_FORMAT_VERSION) {
        reader_note_unknown(&r->notes, s->name, (int64_t)h->sequence, offset,
                            "the chunk has format version %u, newer than this program's, which "
                            "reads version %d: skipped",
                            h->version, DMI_FORMAT_VERSION);
        s->lost = true;
        return 0;
    }
    int res = reader_read_meta(r, s, offset, h, &meta);
    if (res == -ENOMEM)
        return res;
    if (res) {
        reader_note(&r->notes, true, s->name, (int64_t)h->sequence, offset + sizeof *h,
                    res == -ENXIO ? "metadata of the chunk (%s) lies in holes of the file"
                                  : "metadata of the chunk (%s) does not match its checksum",
                    chunk_type_name(h->type));
        s->lost = true;
        return 0;
    }
    res = take_meta(r, s, h, offset, meta, &wrong);
    if (wrong) {
        reader_note(&r->notes, true, s->name, (int64_t)h->sequence, offset + sizeof *h,
                    "the chunk (%s) contradicts itself or its neighbours: %s",
                    chunk_type_name(h->type), wrong);
        s->lost |= h->type != DMI_CHUNK_FOOTER;
    }
    return res;
}

/* ------------------------------------------------------------------------- the walk */

static void check_sequence(struct reader *r, struct reader_segment *s, uint64_t sequence,
                           uint64_t offset)
{
    s->lost |= sequence != s->next_sequence;
    if (sequence > s->next_sequence)
        reader_note(&r->notes, true, s->name, (int64_t)s->next_sequence, offset,
                    "missing: %" PRIu64 " chunk(s), number %" PRIu64 " to %" PRIu64,
                    sequence - s->next_sequence, s->next_sequence, sequence - 1);
    else if (sequence < s->next_sequence)
        reader_note(&r->notes, true, s->name, (int64_t)sequence, offset,
                    "the chunk is out of order: number %" PRIu64 " was expected", s->next_sequence);
}

/* Whether the walk can go on: *@at is where then. Notes what is passed over. */
static bool pass_over(struct reader *r, struct reader_segment *s, uint64_t *at, uint64_t end,
                      const struct dmi_chunk_header *cut)
{
    uint64_t next = scan(r, s, *at + DMI_CHUNK_ALIGN, end);
    if (next >= end)
        return false;
    if (cut)
        reader_note(&r->notes, true, s->name, (int64_t)cut->sequence, *at,
                    "the chunk ends after the file's end, and other chunks follow: %" PRIu64
                    " bytes skipped",
                    next - *at);
    else
        reader_note(&r->notes, true, s->name, (int64_t)s->next_sequence, *at,
                    "the header of the chunk is damaged; %" PRIu64
                    " bytes skipped to the next chunk",
                    next - *at);
    s->next_sequence = cut ? cut->sequence + 1 : s->next_sequence + 1;
    s->lost = true;
    *at = next;
    return true;
}

/* The chunks from s->walked to @end. */
static int walk_chunks(struct reader *r, struct reader_segment *s, uint64_t end, bool have_trailer)
{
    uint64_t at = s->walked;
    while (at < end) {
        struct dmi_chunk_header h;
        bool fits = end - at >= sizeof h && !reader_read(r, s, &h, sizeof h, at);
        bool valid = fits && reader_header_valid(r, &h);
        if (!valid && s->have_footer && end - at == sizeof(struct dmi_trailer) && !have_trailer)
            break; /* a trailer that does not hold: judged by the caller */
        if (!valid || chunk_bytes(&h) > end - at) {
            if (!pass_over(r, s, &at, end, valid ? &h : NULL))
                break; /* cut off, and nothing after it: judged by the caller */
            continue;
        }
        check_sequence(r, s, h.sequence, at);
        s->next_sequence = h.sequence + 1;
        TRY(take_chunk(r, s, &h, at));
        s->last_offset = at;
        s->last_hash = h.hash;
        at += chunk_bytes(&h);
        s->have_footer = h.type == DMI_CHUNK_FOOTER;
        s->walked = at;
    }
    s->walked = at;
    return 0;
}

/* How the segment ends, once all its chunks are read. */
static void judge_end(struct reader *r, struct reader_segment *s, uint64_t end,
                      const struct dmi_trailer *trailer)
{
    uint64_t at = s->walked;
    s->n_torn = 0;
    s->closed = true;
    if (trailer && s->have_footer && at == end) {
        if (s->last_offset != trailer->footer_offset)
            reader_note(&r->notes, true, s->name, -1, end,
                        "the trailer points elsewhere than to the footer");
    } else if (trailer) {
        reader_note(&r->notes, true, s->name, (int64_t)s->next_sequence, at,
                    "the last %" PRIu64 " bytes before the trailer hold no readable chunk: footer "
                    "or chunk damaged; read by scanning",
                    end - at);
        s->next_sequence++;
    } else if (s->have_footer && end - at == sizeof *trailer) {
        reader_note(&r->notes, true, s->name, -1, at,
                    "the segment has a footer but its trailer is damaged");
    } else {
        s->closed = false;
        s->n_torn = end - at;
    }
}

int reader_walk(struct reader *r, uint32_t segment)
{
    struct reader_segment *s = &r->index.segments[segment];
    uint64_t end = s->n_bytes;
    if (s->walked < sizeof(struct dmi_segment_header))
        s->walked = sizeof(struct dmi_segment_header);
    if (end < s->walked)
        return 0;
    struct dmi_trailer trailer;
    bool have_trailer = reader_read_trailer(r, s, &trailer);
    if (have_trailer)
        end -= sizeof trailer;
    r->notes.walking = s->number;
    int res = walk_chunks(r, s, end, have_trailer);
    if (!res)
        judge_end(r, s, end, have_trailer ? &trailer : NULL);
    r->notes.walking = UINT32_MAX;
    return res;
}

int reader_walk_anew(struct reader *r, uint32_t segment)
{
    struct reader_segment *s = &r->index.segments[segment];
    reader_free_chunks(r, s);
    reader_forget_blocks(&r->decoder);
    reader_forget(&r->notes, s->number);
    s->indexed = s->closed = s->lost = s->have_footer = s->footer_holds = false;
    s->n_seen = s->walked = s->n_torn = 0;
    s->next_sequence = s->first_sequence;
    return reader_walk(r, segment);
}

int reader_next_listed(struct reader *r, uint32_t type, struct reader_cursor *at,
                       struct reader_chunk **out)
{
    for (; at->segment < r->index.n_segments; at->segment++, at->next = 0) {
        struct reader_segment *s = &r->index.segments[at->segment];
        int res = reader_list_chunks(r, s);
        if (res == -EBADMSG)
            return (res = reader_walk_anew(r, at->segment)) ? res : -EAGAIN;
        if (res)
            return res;
        while (at->next < s->n_chunks) {
            at->chunk = at->next++;
            *out = &s->chunks[at->chunk];
            if (chunk_type_of((*out)->type) == type)
                return 0;
        }
    }
    *out = NULL;
    return 0;
}

int reader_distrust(struct reader *r, uint32_t segment, uint32_t chunk, const char *wrong)
{
    struct reader_segment *s = &r->index.segments[segment];
    const struct reader_chunk c = s->chunks[chunk];
    bool indexed = s->indexed;
    if (!indexed) {
        NOTE_CHUNK(r, s, &c, "the chunk (%s) changed while it was read: %s",
                   chunk_type_name(c.type), wrong);
        return 0;
    }
    TRY(reader_walk_anew(r, segment));
    NOTE_CHUNK(r, s, &c,
               "the chunk (%s) and the index of the segment contradict each other: %s; read by "
               "walking",
               chunk_type_name(c.type), wrong);
    return -EAGAIN;
}
