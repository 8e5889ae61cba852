/* SPDX-License-Identifier: Apache-2.0 */
/* The metadata of chunks: read when it is needed, and kept while there is room for it. */
#include "core/cleanup.h"
#include "core/err.h"
#include "storage/chunk.h"
#include "storage/codec/hash.h"
#include "storage/reader/reader_private.h"
#include "storage/rows.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MAX_META_BYTES (64u << 20) /* of RECORDS in memory at a time */
#define WINDOW_META    (1u << 20)  /* likewise, where records are read by window */
#define MUCH_META      (1u << 20)  /* is looked at for holes before memory is taken for it */

/* The header's layout is that of every version from 2 on; what follows it only of this one. */
bool reader_header_valid(const struct reader *r, const struct dmi_chunk_header *h)
{
    return h->magic == DMI_CHUNK_MAGIC && h->version >= 2 && h->n_meta <= DMI_MAX_META &&
           h->n_payload <= DMI_MAX_PAYLOAD &&
           (!r->said.have_uuid || !memcmp(&h->run, r->said.uuid, sizeof h->run)) &&
           h->hash == hash_bytes(h, offsetof(struct dmi_chunk_header, hash));
}

int reader_read_meta(struct reader *r, struct reader_segment *s, uint64_t offset,
                     const struct dmi_chunk_header *header, uint8_t **out)
{
    size_t n = (size_t)chunk_pad(header->n_meta);
    /* a small file may claim any number of zeros; a writer leaves no holes */
    if (n > MUCH_META && reader_hole_bytes(r, s, offset + sizeof *header, n) > n / 2)
        return -ENXIO;
    _cleanup_(freep) uint8_t *meta = malloc(n + 1);
    if (!meta)
        return -ENOMEM;
    TRY(reader_read(r, s, meta, n, offset + sizeof *header));
    if (hash_bytes(meta, header->n_meta) != header->meta_hash ||
        !parse_is_zero(meta + header->n_meta, n - header->n_meta))
        return -EBADMSG;
    *out = steal_ptr(meta);
    return 0;
}

/* ------------------------------------------------------------------------- records */

void reader_free_meta(struct reader *r, struct reader_chunk *c)
{
    if (!c->meta)
        return;
    r->index.n_meta_bytes -= c->meta->header.n_meta;
    free(c->meta->bytes);
    free(c->meta);
    c->meta = NULL;
}

/* Makes room by freeing the oldest half; called rarely, so that it may look at all chunks. */
static void make_room(struct reader *r)
{
    uint64_t lowest = UINT64_MAX, highest = 0;
    for (size_t i = 0; i < r->index.n_segments; i++)
        for (size_t k = 0; k < r->index.segments[i].n_chunks; k++) {
            const struct reader_meta *m = r->index.segments[i].chunks[k].meta;
            lowest = m && m->used < lowest ? m->used : lowest;
            highest = m && m->used > highest ? m->used : highest;
        }
    for (size_t i = 0; i < r->index.n_segments; i++)
        for (size_t k = 0; k < r->index.segments[i].n_chunks; k++) {
            struct reader_chunk *c = &r->index.segments[i].chunks[k];
            if (c->meta && c->meta->used <= lowest + (highest - lowest) / 2)
                reader_free_meta(r, c);
        }
}

int reader_keep_meta(struct reader *r, struct reader_chunk *c,
                     const struct dmi_chunk_header *header, uint8_t *bytes, const char **wrong)
{
    _cleanup_(freep) uint8_t *owned = bytes;
    struct records_view view;
    int res =
        parse_records(bytes, header->n_meta, header->n_payload, r->said.n_sites, &view, wrong);
    if (res || *wrong)
        return res ? res : -EBADMSG;
    size_t most = reader_is_by_window(r) ? WINDOW_META : MAX_META_BYTES;
    if (r->index.n_meta_bytes + header->n_meta > most)
        make_room(r);
    struct reader_meta *m = malloc(sizeof *m);
    if (!m)
        return -ENOMEM;
    *m = (struct reader_meta){ .header = *header, .view = view, .used = ++r->index.clock };
    m->bytes = steal_ptr(owned);
    r->index.n_meta_bytes += header->n_meta;
    c->meta = m;
    return 0;
}

/* The header of a chunk that an index or a walk named, as it was then. */
static int read_header(struct reader *r, struct reader_segment *s, const struct reader_chunk *c,
                       struct dmi_chunk_header *h, const char **wrong)
{
    *wrong = "it cannot be read";
    if (reader_read(r, s, h, sizeof *h, c->offset))
        return -EBADMSG;
    *wrong = "there is none at this place";
    if (!reader_header_valid(r, h) || h->sequence != c->sequence || h->type != c->type ||
        h->version != DMI_FORMAT_VERSION || chunk_bytes(h) > s->n_bytes - c->offset)
        return -EBADMSG;
    *wrong = NULL;
    return 0;
}

static int read_chunk(struct reader *r, struct reader_segment *s, const struct reader_chunk *c,
                      struct dmi_chunk_header *h, uint8_t **bytes, const char **wrong)
{
    int res = read_header(r, s, c, h, wrong);
    if (!res && (res = reader_read_meta(r, s, c->offset, h, bytes)) && res != -ENOMEM)
        *wrong = "its metadata does not match its checksum";
    return res && res != -ENOMEM ? -EBADMSG : res;
}

int reader_meta(struct reader *r, struct reader_segment *s, struct reader_chunk *c,
                struct reader_meta **out, const char **wrong)
{
    *wrong = NULL;
    if (!c->meta) {
        struct dmi_chunk_header h;
        uint8_t *bytes = NULL;
        int res = read_chunk(r, s, c, &h, &bytes, wrong);
        if (!res)
            res = reader_keep_meta(r, c, &h, bytes, wrong);
        if (!res && c->meta->view.n_records != c->n) {
            *wrong = "it has another number of records";
            reader_free_meta(r, c);
            res = -EBADMSG;
        }
        if (res)
            return res;
    }
    c->meta->used = ++r->index.clock;
    *out = c->meta;
    return 0;
}

bool reader_keeps_twice(const struct records_view *v, const struct dmi_record *at)
{
    const uint32_t *kept = v->kept + at->kept;
    bool ascends = true;
    for (uint32_t i = 1; i < at->n_kept; i++)
        ascends &= kept[i - 1] < kept[i];
    if (!at->n_kept || ascends)
        return false;
    _cleanup_(freep) uint32_t *sorted = malloc(at->n_kept * sizeof *sorted);
    if (!sorted)
        return true;
    memcpy(sorted, kept, at->n_kept * sizeof *sorted);
    return rows_repeat(sorted, at->n_kept);
}

void reader_note_strange(struct reader *r, struct reader_segment *s, struct reader_chunk *c,
                         const struct records_view *v)
{
    if (c->noted)
        return;
    c->noted = true;
    for (uint32_t g = 0; g < v->n_groups; g++)
        if (!codec_planes(v->groups[g].encoding, v->groups[g].element_bytes)) {
            c->strange = true;
            reader_note_unknown(&r->notes, s->name, (int64_t)c->sequence, c->offset,
                                "encoding %u of %u-byte elements is not known here: the records "
                                "of group %u cannot be decoded",
                                v->groups[g].encoding, v->groups[g].element_bytes, g);
        }
    for (uint32_t i = 0; i < v->n_records; i++)
        if (reader_keeps_twice(v, &v->records[i]))
            NOTE_CHUNK(r, s, c, "the record of launch %" PRIu64 " keeps a row twice",
                       v->records[i].launch);
    uint32_t n_strange = 0, first = 0;
    for (uint32_t i = 0; i < v->n_records; i++)
        if (!dmi_dtype_info(v->records[i].dtype) && !n_strange++)
            first = v->records[i].dtype;
    c->strange |= n_strange != 0;
    if (n_strange)
        reader_note_unknown(&r->notes, s->name, (int64_t)c->sequence, c->offset,
                            "element type %u is not known here: %u record(s) left out", first,
                            n_strange);
}

/* ------------------------------------------------------------------------- any chunk but records */

static reader_take *const adopt_of[] = {
#define CHUNK_TYPE(type, of, name, payload, index, repeat, live, adopt, take)                      \
    [DMI_CHUNK_##type] = adopt,
#include "storage/chunk_types.def"
};

int reader_adopt(struct reader_chunk *c, uint64_t n_meta, uint8_t *bytes, const char **wrong)
{
    return adopt_of[c->type](c, n_meta, bytes, wrong);
}

int reader_load_chunk(struct reader *r, struct reader_segment *s, struct reader_chunk *c,
                      const char **wrong)
{
    *wrong = NULL;
    if (c->bytes)
        return 0;
    struct dmi_chunk_header h;
    uint8_t *bytes = NULL;
    int res = read_chunk(r, s, c, &h, &bytes, wrong);
    if (!res)
        res = reader_adopt(c, h.n_meta, bytes, wrong);
    bool counted = c->type == DMI_CHUNK_STEPS; /* by the index */
    if (!res && !*wrong && counted && c->n_held != c->n)
        *wrong = "it has another number of steps";
    return res ? res : *wrong ? -EBADMSG : 0;
}

struct reader_chunk *reader_next_chunk(const struct reader *r, uint32_t type,
                                       struct reader_cursor *at)
{
    for (; at->segment < r->index.n_segments; at->segment++, at->next = 0)
        while (at->next < r->index.segments[at->segment].n_chunks) {
            at->chunk = at->next++;
            struct reader_chunk *c = &r->index.segments[at->segment].chunks[at->chunk];
            if (chunk_type_of(c->type) == type)
                return c;
        }
    return NULL;
}

void reader_free_chunks(struct reader *r, struct reader_segment *s)
{
    for (size_t i = 0; i < s->n_chunks; i++) {
        reader_free_meta(r, &s->chunks[i]);
        reader_free_held(&s->chunks[i]);
    }
    free(s->chunks);
    s->chunks = NULL;
    s->n_chunks = s->chunks_room = 0;
    free(s->extents);
    s->extents = NULL;
    s->n_extents = s->extents_room = s->n_extended = 0;
    s->first_chunk = s->end_chunk = 0;
    s->listed = false;
    r->index.n_footer_bytes -= s->n_footer;
    s->n_footer = 0;
    free(s->footer);
    free(s->tallies);
    s->footer = NULL;
    s->tallies = NULL;
    footer_deinit(&s->index);
}
