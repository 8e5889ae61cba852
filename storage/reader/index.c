/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A closed segment by its footer: header, trailer, footer and the header of its dictionary are read, nothing
 * else. What the footer says of a chunk is compared with the chunk when that is read; where it contradicts, the
 * segment is walked (select.c).
 */
#include "core/cleanup.h"
#include "storage/chunk.h"
#include "storage/codec/hash.h"
#include "storage/reader/reader_private.h"

#include <errno.h>
#include <string.h>

#define MAX_INDEX_BYTES (1u << 20) /* of footers in memory at a time, and the one that is used */

bool reader_read_trailer(struct reader *r, struct reader_segment *s, struct dmi_trailer *t)
{
    return s->n_bytes >= sizeof(struct dmi_segment_header) + sizeof *t &&
           !reader_read(r, s, t, sizeof *t, s->n_bytes - sizeof *t) &&
           t->magic == DMI_TRAILER_MAGIC &&
           t->hash ==
               hash_two(t, offsetof(struct dmi_trailer, hash), r->said.uuid, sizeof r->said.uuid) &&
           t->n_file == s->n_bytes;
}

/* The footer where the trailer says it is, and that it ends where the trailer begins. */
static int read_footer(struct reader *r, struct reader_segment *s, struct dmi_chunk_header *h,
                       uint64_t *offset)
{
    struct dmi_trailer t;
    if (!reader_read_trailer(r, s, &t) || t.footer_offset % DMI_CHUNK_ALIGN ||
        t.footer_offset < sizeof(struct dmi_segment_header) ||
        t.footer_offset > s->n_bytes - sizeof t - sizeof *h ||
        reader_read(r, s, h, sizeof *h, t.footer_offset) || !reader_header_valid(r, h) ||
        h->version != DMI_FORMAT_VERSION || h->type != DMI_CHUNK_FOOTER || h->n_payload ||
        t.footer_offset + chunk_bytes(h) + sizeof t != s->n_bytes)
        return -EBADMSG;
    *offset = t.footer_offset;
    return reader_read_meta(r, s, t.footer_offset, h, &s->footer);
}

/* The dictionary: read where none is known yet, else its hash is enough. */
static int check_dictionary(struct reader *r, struct reader_segment *s)
{
    struct dmi_chunk_header h;
    const uint64_t offset = sizeof(struct dmi_segment_header);
    if (reader_read(r, s, &h, sizeof h, offset) || !reader_header_valid(r, &h) ||
        h.version != DMI_FORMAT_VERSION || h.type != DMI_CHUNK_SITES || h.n_payload ||
        h.n_meta > DMI_MAX_JSON || chunk_bytes(&h) > s->n_bytes - offset)
        return -EBADMSG;
    if (r->said.own_dictionary)
        return h.meta_hash == r->said.dictionary_hash ? 0 : -EBADMSG;
    _cleanup_(freep) uint8_t *meta = NULL;
    int res = reader_read_meta(r, s, offset, &h, &meta);
    if (!res)
        res = reader_take_dictionary(r, s->name, (const char *)meta, h.n_meta);
    return res ? res : r->said.own_dictionary ? 0 : -EBADMSG;
}

/* ------------------------------------------------------------------------- in memory */

/* Whether more is known of a chunk than the footer has. */
static bool is_known(const struct reader_chunk *c)
{
    if (c->type == DMI_CHUNK_RECORDS)
        return c->strange;
    return c->noted || c->bytes || c->type == DMI_CHUNK_CHANGES;
}

/* The others are found in the footer again. */
static void drop_chunks(struct reader *r, struct reader_segment *s)
{
    size_t kept = 0;
    for (size_t i = 0; i < s->n_chunks; i++) {
        reader_free_meta(r, &s->chunks[i]);
        if (is_known(&s->chunks[i]))
            s->chunks[kept++] = s->chunks[i];
    }
    s->n_chunks = kept;
    s->listed = false;
    struct reader_chunk *fitting = malloc((kept + 1) * sizeof *fitting);
    if (!fitting)
        return;
    memcpy(fitting, s->chunks, kept * sizeof *fitting);
    free(s->chunks);
    s->chunks = fitting;
}

static void drop_index(struct reader *r, struct reader_segment *s)
{
    /* records that are selected name chunks by their places in the list */
    if (!r->selection.made || reader_is_by_window(r))
        drop_chunks(r, s);
    r->index.n_footer_bytes -= s->n_footer;
    s->n_footer = 0;
    free(s->footer);
    s->footer = NULL;
}

/* The footer that was read last stays, and others while there is room. */
static void keep_index(struct reader *r, struct reader_segment *s, size_t n)
{
    s->n_footer = n;
    r->index.n_footer_bytes += n;
    for (size_t i = 0; r->index.n_footer_bytes > MAX_INDEX_BYTES && i < r->index.n_segments; i++)
        if (&r->index.segments[i] != s && r->index.segments[i].footer)
            drop_index(r, &r->index.segments[i]);
}

static int view_index(const struct reader *r, struct reader_segment *s,
                      const struct dmi_chunk_header *h, uint64_t offset)
{
    const char *wrong = NULL;
    int res = parse_footer(s->footer, h->n_meta, offset, r->said.n_sites, &s->view, &wrong);
    return res ? res : wrong ? -EBADMSG : 0;
}

/* All chunks by the footer; what is known of those that are there stays. */
static int list_chunks(struct reader_segment *s)
{
    struct reader_chunk *all = calloc(s->view.head.n_chunks + 1u, sizeof *all);
    if (!all)
        return -ENOMEM;
    for (uint32_t i = 0; i < s->view.head.n_chunks; i++) {
        const struct dmi_footer_chunk *row = &s->view.chunks[i];
        all[i] = (struct reader_chunk){ .offset = row->offset,
                                        .sequence = s->first_sequence + i,
                                        .type = row->type,
                                        .n = row->n,
                                        .first = row->first,
                                        .last = row->last };
    }
    for (size_t i = 0; i < s->n_chunks; i++)
        all[s->chunks[i].sequence - s->first_sequence] = s->chunks[i];
    free(s->chunks);
    s->chunks = all;
    s->n_chunks = s->view.head.n_chunks;
    s->listed = true;
    return 0;
}

int reader_load_index(struct reader *r, struct reader_segment *s)
{
    uint64_t n_chunks = s->end_chunk - s->first_chunk;
    struct dmi_chunk_header h;
    uint64_t offset;
    if (!s->indexed || s->footer)
        return 0;
    int res = read_footer(r, s, &h, &offset);
    if (!res)
        res = view_index(r, s, &h, offset);
    if (!res)
        res = s->view.head.n_chunks == n_chunks ? list_chunks(s) : -EBADMSG;
    if (!res) {
        keep_index(r, s, h.n_meta);
        return 0;
    }
    free(s->footer);
    s->footer = NULL;
    return res == -ENOMEM ? res : -EBADMSG;
}

int reader_list_chunks(struct reader *r, struct reader_segment *s)
{
    return s->listed ? 0 : reader_load_index(r, s);
}

/* ------------------------------------------------------------------------- at first */

static int take_chunks(struct reader *r, struct reader_segment *s)
{
    int res = list_chunks(s);
    for (size_t i = 0; !res && i < s->n_chunks; i++)
        if (!chunk_type_known(s->chunks[i].type))
            reader_note_unknown(&r->notes, s->name, (int64_t)s->chunks[i].sequence,
                                s->chunks[i].offset, "chunk type %u is not known here: skipped",
                                s->chunks[i].type);
    s->first_chunk = s->first_sequence;
    s->end_chunk = s->first_sequence + s->n_chunks;
    s->n_seen = s->n_chunks + 1;
    return res;
}

static int take_index(struct reader *r, struct reader_segment *s)
{
    struct dmi_chunk_header h;
    uint64_t offset;
    int res = read_footer(r, s, &h, &offset);
    if (!res)
        res = check_dictionary(r, s);
    if (!res)
        res = view_index(r, s, &h, offset);
    if (res)
        return res;
    if (s->view.head.first_sequence != s->first_sequence ||
        h.sequence != s->first_sequence + s->view.head.n_chunks)
        return -EBADMSG;
    if (!(s->tallies = malloc((s->view.head.n_sites + 1u) * sizeof *s->tallies)))
        return -ENOMEM;
    memcpy(s->tallies, s->view.sites, s->view.head.n_sites * sizeof *s->tallies);
    s->next_sequence = h.sequence + 1;
    res = take_chunks(r, s);
    if (!res)
        keep_index(r, s, h.n_meta);
    return res;
}

int reader_by_index(struct reader *r, uint32_t segment)
{
    struct reader_segment *s = &r->index.segments[segment];
    if (r->index.distrust || !s->header_ok)
        return 0;
    int res = take_index(r, s);
    if (!res) {
        s->indexed = s->closed = true;
        return 1;
    }
    free(s->footer);
    free(s->tallies);
    s->footer = NULL;
    s->tallies = NULL;
    return res == -ENOMEM ? res : 0;
}

const struct dmi_footer_entry *reader_entries(const struct reader_segment *s, size_t *n)
{
    *n = s->indexed ? s->view.head.n_entries : s->index.entries.n / sizeof(struct dmi_footer_entry);
    return s->indexed ? s->view.entries : (const void *)s->index.entries.data;
}

const struct dmi_footer_site *reader_tallies(const struct reader_segment *s, size_t *n)
{
    *n = s->indexed ? s->view.head.n_sites : s->index.sites.n / sizeof(struct dmi_footer_site);
    return s->indexed ? s->tallies : (const void *)s->index.sites.data;
}

const struct dmi_footer_span *reader_spans(const struct reader_segment *s, size_t *n,
                                           const char **strings)
{
    *n = s->indexed ? s->view.head.n_spans : s->index.spans.n / sizeof(struct dmi_footer_span);
    *strings = s->indexed ? s->view.strings : s->index.strings.data;
    return s->indexed ? s->view.spans : (const void *)s->index.spans.data;
}
