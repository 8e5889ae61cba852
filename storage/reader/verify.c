/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every byte of every file: a second reader that believes no footer walks all segments, makes their indexes
 * again, decodes everything and compares what files say of one another. Its findings replace the first one's.
 */
#include "core/cleanup.h"
#include "core/grow.h"
#include "storage/chunk.h"
#include "storage/codec/hash.h"
#include "storage/reader/reader_steps.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

/* ------------------------------------------------------------------------- chunks */

static void verify_padding(struct reader *r, struct reader_segment *s, const struct reader_chunk *c,
                           const struct dmi_chunk_header *h)
{
    uint64_t n = chunk_pad(h->n_payload) - h->n_payload;
    uint64_t at = c->offset + sizeof *h + chunk_pad(h->n_meta) + h->n_payload;
    uint8_t pad[DMI_CHUNK_ALIGN] = { 0 };
    if (reader_read(r, s, pad, n, at) || !parse_is_zero(pad, n))
        reader_note(&r->notes, true, s->name, (int64_t)c->sequence, at,
                    "the padding after the payload is not zero");
}

/* The payload of a chunk whose type is not known: its hash stands in the header. */
static int verify_payload(struct reader *r, struct reader_segment *s, const struct reader_chunk *c,
                          const struct dmi_chunk_header *h)
{
    uint64_t at = c->offset + sizeof *h + chunk_pad(h->n_meta), left = h->n_payload;
    struct hash_stream *stream = hash_start();
    _cleanup_(freep) uint8_t *buffer = malloc(DMI_BLOCK_BYTES);
    int res = stream && buffer ? 0 : -ENOMEM;
    while (!res && left) {
        size_t n = left < DMI_BLOCK_BYTES ? (size_t)left : DMI_BLOCK_BYTES;
        res = reader_read(r, s, buffer, n, at);
        if (!res)
            hash_add(stream, buffer, n);
        at += n;
        left -= n;
    }
    uint64_t hash = stream ? hash_end(stream) : 0;
    if (res != -ENOMEM && (res || (h->n_payload ? hash : 0) != h->payload_hash))
        NOTE_CHUNK(r, s, c, "the payload of the chunk (%s) does not match its checksum",
                   chunk_type_name(c->type));
    return res == -ENOMEM ? res : 0;
}

static int verify_chunk(struct reader *r, struct reader_segment *s, const struct reader_chunk *c)
{
    struct dmi_chunk_header h;
    if (reader_read(r, s, &h, sizeof h, c->offset))
        return 0; /* cut off since it was walked */
    verify_padding(r, s, c, &h);
    if (c->type != DMI_CHUNK_RECORDS)
        return verify_payload(r, s, c, &h);
    if (h.payload_hash)
        NOTE_CHUNK(r, s, c, "the header of records has a hash of their payload");
    return 0;
}

/* ------------------------------------------------------------------------- records and steps */

static int decode_all(struct reader *r)
{
    _cleanup_(freep) uint8_t *buffer = NULL;
    char said[sizeof((struct err *)0)->msg] = "";
    size_t room = 0;
    for (size_t i = 0; i < r->selection.n_records; i++) {
        const struct reader_record *rec = &r->selection.records[i];
        const struct reader_segment *s = &r->index.segments[rec->segment];
        const struct reader_chunk *c = &s->chunks[rec->chunk];
        struct err err = { 0 };
        if (RESERVE(buffer, rec->at.n_bytes, room))
            return -ENOMEM;
        int res = reader_decode_one(&err, r, rec, buffer);
        if (res == -ENOMEM)
            return res;
        /* records that share a damaged block give the same sentence: once is enough */
        if (!res || !strcmp(said, err.msg))
            continue;
        memcpy(said, err.msg, sizeof said);
        /* the finding has the place, "FILE, chunk N, offset N: ", by itself */
        const char *what = strstr(err.msg, ": ");
        what = what && strstr(err.msg, ", offset ") < what ? what + 2 : err.msg;
        if (res == -ENOTSUP)
            reader_note_unknown(&r->notes, s->name, (int64_t)c->sequence, c->offset, "%s", what);
        else
            reader_note(&r->notes, res != -ENOENT, s->name, (int64_t)c->sequence, c->offset, "%s",
                        what);
    }
    return 0;
}

#define NOTE_RECORD(r, rec, ...)                                                                   \
    NOTE_CHUNK(r, &(r)->index.segments[(rec)->segment],                                            \
               &(r)->index.segments[(rec)->segment].chunks[(rec)->chunk], __VA_ARGS__)

static void verify_step_of(struct reader *r, const struct reader_record *rec, bool complete)
{
    if (!rec->step && rec->at.step != DMI_NO_STEP && complete)
        NOTE_RECORD(r, rec,
                    "the record of launch %" PRIu64 " names step %" PRIu64 ", which is nowhere",
                    rec->at.launch, rec->at.step);
    if (rec->step && rec->step->place > rec->place)
        NOTE_RECORD(r, rec, "the record of launch %" PRIu64 " stands before its step %" PRIu64,
                    rec->at.launch, rec->at.step);
}

static void verify_steps(struct reader *r)
{
    bool complete = r->index.n_segments && !reader_is_incomplete(r);
    for (size_t i = 1; i < r->selection.steps.n; i++)
        if (r->selection.steps.all[i].entry->sequence ==
            r->selection.steps.all[i - 1].entry->sequence)
            reader_note(&r->notes, true, "steps", (int64_t)r->selection.steps.all[i].place, 0,
                        "step %" PRIu64 " stands there twice",
                        r->selection.steps.all[i].entry->sequence);
    for (size_t i = 0; i < r->selection.n_records; i++)
        verify_step_of(r, &r->selection.records[i], complete);
}

static void verify_account(struct reader *r)
{
    for (uint32_t i = 0; i < r->said.n_sites; i++) {
        struct reader_account a;
        if (reader_account(r, i, &a) && !a.holds)
            reader_note(&r->notes, true, "counters", -1,
                        sizeof(struct dmi_counters) + i * sizeof(struct dmi_site_counters),
                        "site %s: captured + dropped is not expected: %" PRIu64 " records found "
                        "(%" PRIu64 " counted as written) + %" PRIu64 " dropped, %" PRIu64
                        " expected",
                        r->said.sites[i].name, a.found.records, a.counted.records,
                        a.dropped.records, a.expected.records);
    }
}

/* ------------------------------------------------------------------------- all of it */

static int verify_all(struct reader *r)
{
    verify_steps(r);
    /* by chunk, so that blocks are decoded once */
    SORT(r->selection.records, r->selection.n_records, reader_place_order);
    int res = decode_all(r);
    for (size_t i = 0; !res && i < r->index.n_segments; i++)
        for (size_t k = 0; !res && k < r->index.segments[i].n_chunks; k++)
            res = verify_chunk(r, &r->index.segments[i], &r->index.segments[i].chunks[k]);
    if (!res)
        verify_account(r);
    return res ? res : reader_check_packs(r);
}

int reader_verify_one(struct reader *r)
{
    struct err err = { 0 };
    _cleanup_(reader_close_onep) struct reader *second = NULL;
    int res = reader_open_one(&err, r->place.path, true, &second);
    if (!res)
        res = reader_select_one(&err, second, NULL);
    if (!res)
        res = verify_all(second);
    if (res)
        return res;
    if (reader_take_vanished(&second->notes))
        reader_note(&second->notes, false, "manifest.json", -1, 0,
                    "segments were released while they were verified");
    reader_swap_notes(&r->notes, &second->notes);
    return 0;
}
