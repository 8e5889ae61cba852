/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of records: blocks are read and decoded one at a time, some are kept. */
#include "core/err.h"
#include "storage/chunk.h"
#include "storage/codec/hash.h"
#include "storage/reader/reader_private.h"

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
    if (!r->decoder.blocks)
        r->decoder.blocks = calloc(1, sizeof *r->decoder.blocks);
    if (!r->decoder.codec)
        r->decoder.codec = codec_new();
    return r->decoder.blocks && r->decoder.codec ? 0 : -ENOMEM;
}

static bool is_of(const struct reader_block *b, const struct reader_record *rec)
{
    return b->used && b->segment == rec->segment && b->chunk == rec->chunk &&
           b->group == rec->at.group;
}

/* The block if it is there; else NULL, and *@oldest is the place for it. */
static struct reader_block *find_block(struct reader *r, const struct reader_record *rec,
                                       uint64_t number, struct reader_block **oldest)
{
    *oldest = &r->decoder.blocks->block[0];
    for (size_t i = 0; i < READER_BLOCKS; i++) {
        struct reader_block *b = &r->decoder.blocks->block[i];
        if (is_of(b, rec) && b->number == number)
            return b;
        if (b->used < (*oldest)->used)
            *oldest = b;
    }
    return NULL;
}

/* Where the block's bytes begin among its group's: known if the block before it was the last one. */
static uint64_t stored_offset(const struct reader *r, const struct block *b, bool is_next)
{
    if (is_next)
        return r->decoder.blocks->next_offset;
    uint64_t at = 0;
    for (const struct dmi_plane *p = b->planes - b->number * b->each; p < b->planes; p++)
        at += p->n_stored;
    return at;
}

static int decode(struct reader *r, const struct block *b, bool is_next, struct reader_block *to,
                  uint32_t *bad)
{
    uint64_t offset = stored_offset(r, b, is_next), n_stored = 0;
    for (uint32_t p = 0; p < b->each; p++)
        n_stored += b->planes[p].n_stored;
    uint64_t left = b->group->n_raw - b->number * DMI_BLOCK_BYTES;
    to->n = left < DMI_BLOCK_BYTES ? (size_t)left : DMI_BLOCK_BYTES;
    if (n_stored > DMI_BLOCK_BYTES)
        return -EBADMSG;
    uint64_t payload = b->chunk_offset + sizeof b->meta->header + chunk_pad(b->meta->header.n_meta);
    int res = reader_read(r, b->segment, r->decoder.blocks->stored, n_stored,
                          payload + b->group->offset + offset);
    if (!res)
        res = codec_decode(r->decoder.codec, b->group->encoding, b->group->element_bytes, b->planes,
                           r->decoder.blocks->stored, n_stored, to->raw, to->n, bad);
    r->decoder.blocks->next_offset = offset + n_stored;
    return res;
}

/* Sets @b to block @number of the record's group. Return: 0 or -errno with a sentence. */
static int locate(struct err *err, struct reader *r, const struct reader_record *rec,
                  uint64_t number, struct block *b)
{
    struct reader_segment *s = &r->index.segments[rec->segment];
    struct reader_meta *m;
    const char *wrong;
    int res = reader_list_chunks(r, s);
    if (res)
        return err_set(err, res, "%s: its footer cannot be read any more", s->name);
    struct reader_chunk *c = &s->chunks[rec->chunk];
    res = reader_meta(r, s, c, &m, &wrong);
    if (res == -EBADMSG)
        return err_set(err, res, "%s, chunk %" PRIu64 ", offset %" PRIu64 ": %s", s->name,
                       c->sequence, c->offset, wrong);
    if (res)
        return err_set_errno(err, -res, "cannot decode");
    const struct dmi_group *g = &m->view.groups[rec->at.group];
    *b = (struct block){ .segment = s,
                         .meta = m,
                         .group = g,
                         .chunk_offset = c->offset,
                         .number = number,
                         .each = codec_planes(g->encoding, g->element_bytes) };
    b->planes = m->view.planes + g->first_plane + number * b->each;
    return 0;
}

/* Block @number of the record's group, decoded. */
static int load_block(struct err *err, struct reader *r, const struct reader_record *rec,
                      uint64_t number, const struct reader_block **out)
{
    struct reader_block *to;
    struct block b = { 0 };
    uint32_t bad = 0;
    if (prepare(r))
        return err_set_errno(err, ENOMEM, "cannot decode");
    struct reader_block *there = find_block(r, rec, number, &to);
    if (!there) {
        TRY(locate(err, r, rec, number, &b));
        const struct reader_block *last = r->decoder.blocks->last;
        bool is_next = last && is_of(last, rec) && last->number + 1 == number;
        to->used = 0;
        r->decoder.blocks->last = NULL;
        int res = b.each ? decode(r, &b, is_next, to, &bad) : -ENOTSUP;
        if (res)
            return explain(err, res, &b, bad);
        to->segment = rec->segment, to->chunk = rec->chunk, to->group = rec->at.group;
        to->number = number;
        r->decoder.blocks->last = there = to;
    }
    there->used = ++r->decoder.clock;
    *out = there;
    return 0;
}

static int decode_record(struct err *err, struct reader *r, const struct reader_record *rec,
                         void *out)
{
    uint64_t at = rec->at.offset, left = rec->at.n_bytes;
    uint8_t *to = out;
    while (left) {
        const struct reader_block *block = NULL;
        int res = load_block(err, r, rec, at / DMI_BLOCK_BYTES, &block);
        if (res || !block)
            return res ? res : -EIO;
        size_t from = at % DMI_BLOCK_BYTES, n = block->n - from;
        if (n > left)
            n = (size_t)left;
        memcpy(to, block->raw + from, n);
        to += n;
        at += n;
        left -= n;
    }
    if (hash_bytes(out, rec->at.n_bytes) == rec->at.hash)
        return 0;
    struct reader_segment *s = &r->index.segments[rec->segment];
    uint64_t offset = reader_list_chunks(r, s) ? 0 : s->chunks[rec->chunk].offset;
    return err_set(err, -EBADMSG,
                   "%s, chunk %" PRIu64 ", offset %" PRIu64 ": the record of launch %" PRIu64
                   " does not match its checksum though its planes do",
                   s->name, rec->place, offset, rec->at.launch);
}

int reader_decode_one(struct err *err, struct reader *r, const struct reader_record *rec, void *out)
{
    int res = decode_record(err, r, rec, out);
    if (!reader_take_vanished(&r->notes))
        return res;
    return err_set(err, -ENOENT, "%s: the segment was deleted before its records were read",
                   r->index.segments[rec->segment].name);
}
