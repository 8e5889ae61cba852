/* SPDX-License-Identifier: Apache-2.0 */
#include "storage/run.h"

#include "core/atomic.h"
#include "core/cleanup.h"
#include "core/clock.h"
#include "core/grow.h"
#include "storage/chunk.h"
#include "storage/counters.h"
#include "storage/file.h"
#include "storage/folder.h"
#include "storage/hash.h"
#include "storage/identity.h"
#include "storage/manifest.h"
#include "storage/pending.h"
#include "storage/segment.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_SEGMENT_BYTES (1ull << 30)
#define MAX_CODECS            16

struct run {
    char *path;
    struct manifest manifest;
    bool manifest_stale;
    uint64_t segment_bytes;
    enum run_fsync fsync;

    struct counters counters;
    struct pending
        pending; /* its lock is never held together with ours, except in pending_take() */

    pthread_mutex_t lock; /* all below, and the manifest */
    struct segment segment;
    uint64_t next_sequence;
    struct text steps, outcomes; /* metadata taken from @pending, not yet committed */
    struct codec *codecs[MAX_CODECS];
    unsigned n_codecs;
};

static void lock_release(pthread_mutex_t **lock)
{
    pthread_mutex_unlock(*lock);
}

#define HOLD(run)                                                                                  \
    _cleanup_(lock_release) pthread_mutex_t *held = &(run)->lock;                                  \
    pthread_mutex_lock(held)

/* ------------------------------------------------------------------------- opening */

/* Gives the folder its name; open files are known by their paths (file.h). */
static int publish(struct err *err, struct run *run)
{
    const struct manifest *m = &run->manifest;
    int r = folder_publish(err, &run->path, m->host, m->pid, m->start_ns);
    if (r)
        return r;
    char *counters = folder_file(run->path, "counters");
    char *segment = folder_file(run->path, "seg-000000.dmi");
    if (!counters || !segment) {
        free(counters);
        free(segment);
        return err_set_errno(err, ENOMEM, "cannot name a run's folder");
    }
    free(run->counters.file.path);
    free(run->segment.file.path);
    run->counters.file.path = counters;
    run->segment.file.path = segment;
    return 0;
}

static int make_counters(struct run *run, uint32_t n_sites)
{
    struct manifest *m = &run->manifest;
    _cleanup_(freep) char *path = folder_file(run->path, "counters");
    if (!path)
        return -ENOMEM;
    int r = counters_create(&run->counters, path, n_sites, m->run_uuid, m->pid, m->start_ns);
    m->n_counters = run->counters.n_bytes;
    return r;
}

/* What the engine said and could not be taken, as problems. The counters have a field for steps alone. */
static void note_refused(struct run *run)
{
    struct pending_refusals refused[PENDING_KINDS], back;
    pending_refused(&run->pending, refused, &back);
    manifest_set_problem(&run->manifest, "steps_refused", refused[PENDING_STEP].first,
                         refused[PENDING_STEP].n);
    manifest_set_problem(&run->manifest, "outcomes_refused", refused[PENDING_OUTCOME].first,
                         refused[PENDING_OUTCOME].n);
    manifest_set_problem(&run->manifest, "taps_refused", refused[PENDING_TAP].first,
                         refused[PENDING_TAP].n);
    manifest_set_problem(&run->manifest, "steps_went_back", back.first, back.n);
}

static int write_manifest(struct run *run, bool sync)
{
    _cleanup_(freep) char *path = folder_file(run->path, "manifest.json");
    if (!path)
        return -ENOMEM;
    _cleanup_(text_deinit) struct text text = { 0 };
    note_refused(run);
    manifest_write(&text, &run->manifest);
    if (text.failed)
        return -ENOMEM;
    int r = file_replace(path, text.data, text.n, sync);
    run->manifest_stale = r != 0;
    return r;
}

static int write_spec(struct run *run, const struct run_options *o)
{
    _cleanup_(freep) char *path = folder_file(run->path, "spec.yaml");
    if (!path)
        return -ENOMEM;
    const char *data = o->spec_text ? o->spec_text : "";
    size_t n = o->spec_text ? o->n_spec_text : 0;
    run->manifest.n_spec = n;
    run->manifest.spec_hash = hash_bytes(data, n);
    return file_replace(path, data, n, 0);
}

static int copy_options(struct run *run, const struct run_options *o)
{
    struct manifest *m = &run->manifest;
    struct text sites = { 0 };
    if (o->n_sites > DMI_MAX_SITES)
        return -E2BIG;
    manifest_sites(&sites, o);
    m->sites = sites.data;
    if (sites.failed)
        return -ENOMEM;
    if (sites.n > DMI_MAX_JSON / 2)
        return -E2BIG;
    if (o->spec_path && !(m->spec_path = strdup(o->spec_path)))
        return -ENOMEM;
    if (o->job && *o->job && !(m->job = strdup(o->job)))
        return -ENOMEM;
    if (o->library_version && !(m->library_version = strdup(o->library_version)))
        return -ENOMEM;
    run->segment_bytes = o->segment_bytes ? o->segment_bytes : DEFAULT_SEGMENT_BYTES;
    run->fsync = (enum run_fsync)o->fsync;
    identity_host(m->host, sizeof m->host);
    m->pid = (uint64_t)getpid();
    m->start_ns = clock_real_ns();
    return identity_uuid(m->run_uuid);
}

static int add_segment(struct run *run, uint32_t number)
{
    struct manifest *m = &run->manifest;
    if (grow((void **)&m->segments, number, &m->segments_room, sizeof *m->segments, 8))
        return -ENOMEM;
    struct segment next;
    int r = segment_open(&next, run->path, number, m->run_uuid, run->next_sequence, m->sites);
    if (r)
        return r;
    m->segments[number] = (struct manifest_segment){ 0 };
    m->n_segments = number + 1;
    run->next_sequence++;
    segment_deinit(&run->segment);
    run->segment = next;
    return 0;
}

/* Also on the way of a failed run_open(): takes whatever is there. */
static void free_run(struct run *run)
{
    for (unsigned i = 0; i < run->n_codecs; i++)
        codec_free(run->codecs[i]);
    segment_deinit(&run->segment);
    text_deinit(&run->steps);
    text_deinit(&run->outcomes);
    pending_deinit(&run->pending);
    counters_deinit(&run->counters);
    manifest_deinit(&run->manifest);
    pthread_mutex_destroy(&run->lock);
    free(run->path);
    free(run);
}

int run_open(struct err *err, const struct run_options *options, struct run **out)
{
    struct run *run = calloc(1, sizeof *run);
    if (!run)
        return err_set_errno(err, ENOMEM, "cannot start a run");
    pthread_mutex_init(&run->lock, NULL);
    pending_init(&run->pending);
    run->segment.file.fd = run->counters.file.fd = -1;
    bool fresh = access(options->out_dir, F_OK) != 0;
    int r = copy_options(run, options);
    if (r)
        err_set_errno(err, -r, "cannot describe the run");
    else
        r = folder_create(err, options->out_dir, &run->path);
    if (!r) {
        const char *what = "counters";
        r = make_counters(run, options->n_sites);
        if (!r)
            what = "spec.yaml", r = write_spec(run, options);
        if (!r)
            what = "seg-000000.dmi", r = add_segment(run, 0);
        if (!r)
            what = "manifest.json", r = write_manifest(run, false);
        if (r)
            err_set_errno(err, -r, "cannot write %s in %s", what, options->out_dir);
        else
            r = publish(err, run);
        if (r)
            folder_remove(run->path);
    }
    if (r) {
        if (fresh)
            rmdir(options->out_dir);
        free_run(run);
        return r;
    }
    *out = run;
    return 0;
}

struct dmi_counters *run_counters(struct run *run)
{
    return run->counters.map;
}

const char *run_path(const struct run *run)
{
    return run->path;
}

/* ------------------------------------------------------------------------- steps */

int run_step(struct run *run, uint64_t sequence, const struct dmi_step *step)
{
    int r = pending_step(&run->pending, sequence, step);
    if (r)
        atomic_add_relaxed(&run->counters.map->steps_refused, 1);
    return r;
}

void run_refuse_step(struct run *run, const char *why)
{
    pending_refuse(&run->pending, PENDING_STEP, "a step of the engine is refused: %s", why);
    atomic_add_relaxed(&run->counters.map->steps_refused, 1);
}

void run_refuse_tap(struct run *run, const char *why)
{
    pending_refuse(&run->pending, PENDING_TAP, "a tap is refused: %s", why);
}

int run_accept(struct run *run, const char *request_id, uint64_t step, uint32_t n_accepted)
{
    return pending_accept(&run->pending, request_id, step, n_accepted);
}

int run_request_end(struct run *run, const char *request_id, uint32_t reason)
{
    return pending_end(&run->pending, request_id, reason);
}

/* ------------------------------------------------------------------------- appending */

/* One that was used before, or a new one. Return: NULL without memory. */
static struct codec *take_codec(struct run *run)
{
    {
        HOLD(run);
        if (run->n_codecs)
            return run->codecs[--run->n_codecs];
    }
    return codec_new();
}

static void give_codec(struct run *run, struct codec *codec)
{
    {
        HOLD(run);
        if (run->n_codecs < MAX_CODECS) {
            run->codecs[run->n_codecs++] = codec;
            codec = NULL;
        }
    }
    codec_free(codec);
}

static void note_segment(struct run *run)
{
    const struct segment *s = &run->segment;
    run->manifest.segments[s->number] = (struct manifest_segment){
        .n_bytes = s->end,
        .n_chunks = segment_chunks(s),
        .n_records = segment_records(s),
        .closed = s->closed,
    };
}

static int close_segment(struct run *run)
{
    if (run->segment.closed)
        return 0;
    int r = segment_close(&run->segment, run->next_sequence, run->fsync != RUN_FSYNC_NEVER);
    if (r)
        return r;
    run->next_sequence++;
    note_segment(run);
    return 0;
}

/*
 * The next segment. If there is no room for it the full one is used on, or, where it was closed
 * already, tried again by the next commit: nothing that was committed depends on it.
 */
static int rotate(struct run *run)
{
    int r = close_segment(run);
    if (!r)
        r = add_segment(run, run->segment.number + 1);
    if (!r)
        r = write_manifest(run, run->fsync != RUN_FSYNC_NEVER);
    return r;
}

/* Pending steps, what came of steps, and, where there is one, a chunk of records, in one commit. Locked. */
static int commit(struct run *run, struct chunk *records)
{
    if (run->segment.closed) {
        int r = add_segment(run, run->segment.number + 1);
        if (r)
            return r;
        run->manifest_stale = true;
    }
    pending_take(&run->pending, &run->steps, &run->outcomes);
    struct chunk chunks[3] = { 0 };
    size_t n = 0;
    if (run->steps.n)
        chunk_from_meta(&chunks[n++], DMI_CHUNK_STEPS, (uint8_t *)run->steps.data, run->steps.n);
    if (run->outcomes.n) /* padded by outcomes_take() */
        chunk_from_meta(&chunks[n++], DMI_CHUNK_OUTCOMES, (uint8_t *)run->outcomes.data,
                        run->outcomes.n);
    if (records)
        chunks[n++] = *records;
    if (!n)
        return 0;
    int r =
        segment_append(&run->segment, chunks, n, run->next_sequence, run->fsync == RUN_FSYNC_CHUNK);
    if (r)
        return r;
    run->next_sequence += n;
    run->steps.n = run->outcomes.n = 0;
    if (run->segment.end >= run->segment_bytes || segment_index_is_full(&run->segment))
        rotate(run);
    else if (run->manifest_stale)
        write_manifest(run, false);
    return 0;
}

static bool sites_are_known(const struct run *run, const struct run_record *records,
                            size_t n_records)
{
    for (size_t i = 0; i < n_records; i++)
        if (records[i].site >= run->counters.map->n_sites)
            return false;
    return true;
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
        HOLD(run);
        r = commit(run, chunk);
    }
    chunk_deinit(chunk);
    free(chunk);
    return r;
}

int run_append(struct run *run, const struct run_record *records, size_t n_records)
{
    struct chunk *chunk;
    int r = n_records ? run_encode(run, records, n_records, CODEC_SMALLEST, &chunk) : 0;
    return n_records && !r ? run_append_chunk(run, chunk) : r;
}

void run_problem(struct run *run, const char *site, const char *reason, const char *sentence)
{
    HOLD(run);
    manifest_add_problem(&run->manifest, site, reason, sentence);
    run->manifest_stale = true;
}

int run_commit(struct run *run)
{
    HOLD(run);
    return run->steps.n || run->outcomes.n || pending_any(&run->pending) ? commit(run, NULL) : 0;
}

int run_flush(struct run *run)
{
    HOLD(run);
    int r = commit(run, NULL);
    int w = write_manifest(run, run->fsync == RUN_FSYNC_CHUNK);
    return r ? r : w;
}

/* ------------------------------------------------------------------------- closing */

int run_close(struct run *run)
{
    int r;
    {
        HOLD(run);
        r = commit(run, NULL);
        int s = close_segment(run);
        r = r ? r : s;
        if (!r)
            r = counters_hash(&run->counters, &run->manifest.counters_hash);
        run->manifest.closed = r == 0;
        s = write_manifest(run, run->fsync != RUN_FSYNC_NEVER);
        r = r ? r : s;
        /* last: a reader that sees "closed" finds everything else in place */
        if (!r)
            counters_mark_closed(&run->counters);
    }
    free_run(run);
    return r;
}
