/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of records: blocks are read and decoded one at a time, the last one is kept. */
#include "storage/chunk.h"
#include "storage/hash.h"
#include "storage/reader_private.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* A block, and what is needed to read it. */
struct block {
    struct reader_segment *segment;
    const struct reader_meta *meta;
    const struct dmi_group *group;
    const struct dmi_plane *planes;
    uint64_t chunk_offset;
    uint64_t number;
    uint32_t each; /* planes of a block */
};

static int explain(struct err *err, int res, const struct block *b, uint32_t bad)
{
    uint32_t group = (uint32_t)(b->group - b->meta->view.groups);
    const char *name = b->segment->name;
    uint64_t chunk = b->meta->header.sequence;
    if (res == -ENOMEM)
        return err_set_errno(err, ENOMEM, "cannot decode");
    if (res == -ENOTSUP && !b->each)
        return err_set(err, res,
                       "%s, chunk %" PRIu64 ": group %u: encoding %u of %u-byte elements is not "
                       "known here",
                       name, chunk, group, b->group->encoding, b->group->element_bytes);
    if (res == -ENOTSUP)
        return err_set(err, res,
                       "%s, chunk %" PRIu64 ": plane %u of block %" PRIu64
                       " of group %u: codec %u is not known here",
                       name, chunk, bad, b->number, group, b->planes[bad].codec);
    return err_set(err, res == -EIO ? res : -EBADMSG,
                   "%s, chunk %" PRIu64 ", offset %" PRIu64 ": plane %u of block %" PRIu64
                   " of group %u does not match its checksum or is no valid frame (%s)",
                   name, chunk, b->chunk_offset, bad, b->number, group, strerror(-res));
}

static int prepare(struct reader *r)
{
    if (!r->cache && (r->cache = malloc(sizeof *r->cache)))
        r->cache->n = 0;
    if (!r->codec)
        r->codec = codec_new();
    return r->cache && r->codec ? 0 : -ENOMEM;
}

/* Where the block's bytes begin among its group's: known if the block before it was the last one. */
static uint64_t stored_offset(const struct reader *r, const struct block *b, bool is_next)
{
    if (is_next)
        return r->cache->next_offset;
    uint64_t at = 0;
    for (const struct dmi_plane *p = b->planes - b->number * b->each; p < b->planes; p++)
        at += p->n_stored;
    return at;
}

static int decode(struct reader *r, const struct block *b, bool is_next, uint32_t *bad)
{
    uint64_t offset = stored_offset(r, b, is_next), n_stored = 0;
    for (uint32_t p = 0; p < b->each; p++)
        n_stored += b->planes[p].n_stored;
    uint64_t left = b->group->n_raw - b->number * DMI_BLOCK_BYTES;
    size_t n = left < DMI_BLOCK_BYTES ? (size_t)left : DMI_BLOCK_BYTES;
    if (n_stored > DMI_BLOCK_BYTES)
        return -EBADMSG;
    uint64_t payload = b->chunk_offset + sizeof b->meta->header + chunk_pad(b->meta->header.n_meta);
    int res =
        reader_read(r, b->segment, r->cache->stored, n_stored, payload + b->group->offset + offset);
    if (!res)
        res = codec_decode(r->codec, b->group->encoding, b->group->element_bytes, b->planes,
                           r->cache->stored, n_stored, r->cache->raw, n, bad);
    r->cache->next_offset = offset + n_stored;
    r->cache->n = res ? 0 : n;
    return res;
}

/* Block @number of the record's group, into the cache. */
static int load_block(struct err *err, struct reader *r, const struct reader_record *rec,
                      uint64_t number)
{
    if (prepare(r))
        return err_set_errno(err, ENOMEM, "cannot decode");
    bool same = r->cache->n && r->cache->segment == rec->segment && r->cache->chunk == rec->chunk &&
                r->cache->group == rec->at.group;
    if (same && r->cache->block == number)
        return 0;
    struct reader_segment *s = &r->segments[rec->segment];
    struct reader_chunk *c = &s->chunks[rec->chunk];
    struct reader_meta *m;
    const char *wrong;
    int res = reader_meta(r, s, c, &m, &wrong);
    if (res == -EBADMSG)
        return err_set(err, res, "%s, chunk %" PRIu64 ", offset %" PRIu64 ": %s", s->name,
                       c->sequence, c->offset, wrong);
    if (res)
        return err_set_errno(err, -res, "cannot decode");
    const struct dmi_group *g = &m->view.groups[rec->at.group];
    struct block b = { .segment = s,
                       .meta = m,
                       .group = g,
                       .chunk_offset = c->offset,
                       .number = number,
                       .each = codec_planes(g->encoding, g->element_bytes) };
    b.planes = m->view.planes + g->first_plane + number * b.each;
    uint32_t bad = 0;
    res = b.each ? decode(r, &b, same && r->cache->block + 1 == number, &bad) : -ENOTSUP;
    r->cache->segment = rec->segment;
    r->cache->chunk = rec->chunk;
    r->cache->group = rec->at.group;
    r->cache->block = number;
    return res ? explain(err, res, &b, bad) : 0;
}

int reader_decode(struct err *err, struct reader *r, const struct reader_record *rec, void *out)
{
    uint64_t at = rec->at.offset, left = rec->at.n_bytes;
    uint8_t *to = out;
    while (left) {
        int res = load_block(err, r, rec, at / DMI_BLOCK_BYTES);
        if (res)
            return res;
        size_t from = at % DMI_BLOCK_BYTES, n = r->cache->n - from;
        if (n > left)
            n = (size_t)left;
        memcpy(to, r->cache->raw + from, n);
        to += n;
        at += n;
        left -= n;
    }
    if (hash_bytes(out, rec->at.n_bytes) == rec->at.hash)
        return 0;
    const struct reader_segment *s = &r->segments[rec->segment];
    const struct reader_chunk *c = &s->chunks[rec->chunk];
    return err_set(err, -EBADMSG,
                   "%s, chunk %" PRIu64 ", offset %" PRIu64 ": the record of launch %" PRIu64
                   " does not match its checksum though its planes do",
                   s->name, c->sequence, c->offset, rec->at.launch);
}
