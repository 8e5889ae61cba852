/* SPDX-License-Identifier: Apache-2.0 */
#include "core/any.h"
#include "core/clock.h"
#include "core/err.h"
#include "storage/folder.h"
#include "storage/steps_pack.h"
#include "storage/writer/run_private.h"

#include <errno.h>
#include <string.h>

/* One that was used before, or a new one. Return: NULL without memory. */
static struct codec *take_codec(struct run *run)
{
    {
        RUN_HOLD(run);
        if (run->n_codecs)
            return run->codecs[--run->n_codecs];
    }
    return codec_new();
}

static void give_codec(struct run *run, struct codec *codec)
{
    {
        RUN_HOLD(run);
        if (run->n_codecs < RUN_MAX_CODECS) {
            run->codecs[run->n_codecs++] = codec;
            codec = NULL;
        }
    }
    codec_free(codec);
}

static void note_segment(struct run *run)
{
    const struct segment *s = &run->segment;
    struct manifest_segment *to = &run->manifest.segments[s->number];
    *to = (struct manifest_segment){
        .n_bytes = s->end,
        .n_chunks = segment_chunks(s),
        .n_records = segment_records(s),
        .closed_ns = clock_mono_ns(),
        .closed = s->closed,
    };
    manifest_keep_tallies(to, &s->index.sites);
}

int run_close_segment(struct run *run)
{
    if (run->segment.closed)
        return 0;
    TRY(segment_close(&run->segment, run->next_sequence, run_syncs(run)));
    run->next_sequence++;
    run->unsynced = false;
    note_segment(run);
    return 0;
}

int run_rotate(struct run *run)
{
    int r = run_close_segment(run);
    if (!r)
        r = run_add_segment(run, run->segment.number + 1);
    if (!r)
        r = run_write_manifest(run, run_syncs(run));
    run_release(run); /* on a full disk it makes room */
    return r;
}

bool run_is_old(const struct run *run)
{
    return run->segment_ns && run->segment_begun_ns && !run->segment.closed &&
           clock_mono_ns() - run->segment_begun_ns >= run->segment_ns;
}

/* ------------------------------------------------------------------------- a commit */

#define MAX_CHUNKS 7

/* Metadata as a chunk, if there is any; the text stays its owner, padded where its length is no multiple of 8. */
static void add_meta(struct chunk *chunks, size_t *n, uint16_t type, const struct text *meta)
{
    if (meta->n)
        chunk_from_meta(&chunks[(*n)++], type, (uint8_t *)meta->data, meta->n);
}

/*
 * Steps of a run without sites are packed: no record names one. Return: how many bytes @packed has of them, which its padding follows; 0: there are none,
 * there is no memory, or there are too many.
 */
static size_t pack_steps(const struct run *run, struct text *packed)
{
    static const char zeros[DMI_CHUNK_ALIGN];
    if (!run->steps.n || run->counters.map->n_sites ||
        steps_pack((const uint8_t *)run->steps.data, run->steps.n, packed))
        return 0;
    size_t n = packed->n;
    text_add(packed, zeros, chunk_pad(n) - n);
    return packed->failed ? 0 : n;
}

/* Their rows are in no request's count, as there are none; the requests are shown. */
static void show_packed(struct run *run)
{
    struct chunk steps;
    chunk_from_meta(&steps, DMI_CHUNK_STEPS, (uint8_t *)run->steps.data, run->steps.n);
    live_note_chunk(&run->live, &steps);
}

/* What was committed, for later segments; and how much of it the disk has. */
static void committed(struct run *run, const struct chunk *chunks, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        history_note(&run->history, &chunks[i], run->segment.number);
        if (chunks[i].header.type == DMI_CHUNK_STEPS_PACKED)
            show_packed(run);
        else
            live_note_chunk(&run->live, &chunks[i]);
    }
    run->next_sequence += n;
    run->steps.n = run->outcomes.n = run->changes.n = 0;
    if (!run->segment_begun_ns)
        run->segment_begun_ns = clock_mono_ns();
    run->unsynced = run->durability != RUN_DURABILITY_EACH;
}

/* The segment may be at its end, the manifest may be an old one. */
static void after_commit(struct run *run)
{
    if (run->segment.end >= run->segment_bytes || segment_index_is_full(&run->segment) ||
        run_is_old(run))
        run_rotate(run);
    else if (run->manifest_stale)
        run_write_manifest(run, false);
}

/* What the disk takes for it is noted. */
static int append_timed(struct run *run, struct chunk *chunks, size_t n, bool each)
{
    const struct segment *s = &run->segment;
    uint64_t start = clock_mono_ns(), end = s->end, sync_ns = s->sync_ns;
    int r = segment_append(&run->segment, chunks, n, run->next_sequence, each);
    sync_ns = s->sync_ns - sync_ns;
    live_note_write(&run->live, s->end - end, clock_mono_ns() - start - sync_ns, r != 0);
    if (each)
        live_note_sync(&run->live, sync_ns, r != 0);
    return r;
}

static int append(struct run *run, struct chunk *chunks, size_t n)
{
    bool each = run->durability == RUN_DURABILITY_EACH;
    TRY(append_timed(run, chunks, n, each));
    committed(run, chunks, n);
    if (each && !run->folder_synced)
        run->folder_synced = !folder_sync(run->path);
    after_commit(run);
    return 0;
}

int run_commit_locked(struct run *run, struct chunk *records)
{
    if (run->segment.closed) {
        TRY(run_add_segment(run, run->segment.number + 1));
        run->manifest_stale = true;
    }
    pending_take(&run->pending, &run->steps, &run->outcomes);
    _cleanup_(text_deinit) struct text steps = { 0 }, outcomes = { 0 }, changes = { 0 },
                                       packed = { 0 };
    struct chunk chunks[MAX_CHUNKS] = { 0 };
    size_t n = 0;
    if (records &&
        history_again(&run->history, records, run->segment.number, &steps, &outcomes, &changes))
        return -ENOMEM;
    add_meta(chunks, &n, DMI_CHUNK_CHANGES, &changes);
    add_meta(chunks, &n, DMI_CHUNK_STEPS_AGAIN, &steps);
    add_meta(chunks, &n, DMI_CHUNK_OUTCOMES_AGAIN, &outcomes);
    add_meta(chunks, &n, DMI_CHUNK_CHANGES, &run->changes);
    size_t n_packed = pack_steps(run, &packed);
    if (n_packed)
        chunk_from_meta(&chunks[n++], DMI_CHUNK_STEPS_PACKED, (uint8_t *)packed.data, n_packed);
    else
        add_meta(chunks, &n, DMI_CHUNK_STEPS, &run->steps);
    add_meta(chunks, &n, DMI_CHUNK_OUTCOMES, &run->outcomes);
    if (records)
        chunks[n++] = *records;
    return n ? append(run, chunks, n) : 0;
}

/* ------------------------------------------------------------------------- records */

static bool sites_are_known(const struct run *run, const struct run_record *records,
                            size_t n_records)
{
    return !ANY(i, n_records, records[i].site >= run->counters.map->n_sites);
}

int run_encode(struct run *run, const struct run_record *records, size_t n_records,
               enum codec_rung rung, struct chunk **out)
{
    if (!n_records || !sites_are_known(run, records, n_records))
        return -EINVAL;
    struct chunk *chunk = calloc(1, sizeof *chunk);
    struct codec *codec = chunk ? take_codec(run) : NULL;
    if (codec)
        codec_set_rung(codec, rung);
    int r = codec ? chunk_records(chunk, codec, records, n_records) : -ENOMEM;
    if (codec)
        give_codec(run, codec);
    if (r) {
        free(chunk);
        return r;
    }
    *out = chunk;
    return 0;
}

int run_append_chunk(struct run *run, struct chunk *chunk)
{
    int r;
    {
        RUN_HOLD(run);
        r = run_commit_locked(run, chunk);
    }
    chunk_deinit(chunk);
    free(chunk);
    return r;
}

int run_append_meta(struct run *run, uint16_t type, struct text *meta)
{
    static const char zeros[DMI_CHUNK_ALIGN];
    size_t n_meta = meta->n;
    if (!n_meta && !meta->failed)
        return 0;
    text_add(meta, zeros, chunk_pad(n_meta) - n_meta);
    struct chunk *chunk = calloc(1, sizeof *chunk);
    if (meta->failed || !chunk) {
        text_deinit(meta);
        free(chunk);
        return -ENOMEM;
    }
    chunk_from_meta(chunk, type, (uint8_t *)meta->data, n_meta);
    *meta = (struct text){ 0 };
    return run_append_chunk(run, chunk);
}

int run_append(struct run *run, const struct run_record *records, size_t n_records)
{
    struct chunk *chunk;
    int r = n_records ? run_encode(run, records, n_records, CODEC_SMALLEST, &chunk) : 0;
    return n_records && !r ? run_append_chunk(run, chunk) : r;
}

int run_commit(struct run *run)
{
    RUN_HOLD(run);
    return run->steps.n || run->outcomes.n || run->changes.n || pending_any(&run->pending)
               ? run_commit_locked(run, NULL)
               : 0;
}

int run_flush(struct run *run)
{
    RUN_HOLD(run);
    int r = run_commit_locked(run, NULL);
    int w = run_write_manifest(run, run->durability == RUN_DURABILITY_EACH);
    return r ? r : w;
}
