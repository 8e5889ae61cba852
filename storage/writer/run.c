/* SPDX-License-Identifier: Apache-2.0 */
#include "storage/writer/run.h"

#include "core/any.h"
#include "core/atomic.h"
#include "core/clock.h"
#include "core/err.h"
#include "core/log.h"
#include "storage/codec/hash.h"
#include "storage/file.h"
#include "storage/folder.h"
#include "storage/writer/identity.h"
#include "storage/writer/run_private.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_SEGMENT_BYTES (1ull << 30)
#define DEFAULT_SYNC_NS       5000000000u
#define KEPT_SEGMENTS         8
#define MOST_KEEPER_NS        1000000000u /* between its rounds */
#define LEAST_KEEPER_NS       10000000u

/* ------------------------------------------------------------------------- opening */

/* Gives the folder its name; open files are known by their paths (file.h). */
static int publish(struct err *err, struct run *run)
{
    const struct manifest *m = &run->manifest;
    TRY(folder_publish(err, &run->path, m->host, m->pid, m->start_ns));
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
    live_moved(&run->live, run->path);
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
    m->process = run->counters.alive.process;
    return r;
}

/* Only for the view: what it lacks costs the run nothing. */
static void make_live(struct run *run, const struct run_options *o)
{
    const struct manifest *m = &run->manifest;
    _cleanup_(freep) uint8_t *rows = calloc(o->n_sites + 1u, 1);
    int r = rows ? 0 : -ENOMEM;
    for (uint32_t i = 0; rows && i < o->n_sites; i++)
        rows[i] = (uint8_t)o->sites[i].row;
    if (!r)
        r = live_create(&run->live, run->path, m->run_uuid, m->pid, rows, o->n_sites);
    if (r)
        log_line("dmi-top will show only the counters of this run, its file %s cannot be "
                 "written: %s",
                 LIVE_FILE, strerror(-r));
}

/* The manifest says it, too. */
static void note_no_edits(struct run *run, const char *why)
{
    char sentence[256];
    snprintf(sentence, sizeof sentence, "what becomes of edits is in no file of this run: %s", why);
    manifest_add_problem(&run->manifest, NULL, "edits_not_counted", sentence);
    log_line("%s", sentence);
}

/* Where there are places for edits. The run goes on without it: the process counts then for its own log alone. */
static void make_edits(struct run *run, const struct run_options *o)
{
    struct manifest *m = &run->manifest;
    for (size_t i = 0; i < o->n_sites; i++)
        m->has_places = m->has_places || o->sites[i].writes;
    if (!m->has_places)
        return;
    int r = edit_accounts_create(&run->edits, run->path, m->run_uuid);
    m->n_edits = r ? 0 : edit_accounts_bytes();
    if (r)
        note_no_edits(run, strerror(-r));
}

void run_drop_edits(struct run *run, const char *why)
{
    _cleanup_(freep) char *path = folder_file(run->path, "edits");
    if (!run->edits)
        return;
    edit_accounts_deinit(run->edits);
    run->edits = NULL;
    run->manifest.n_edits = 0;
    if (path)
        unlink(path);
    note_no_edits(run, why);
}

/* Where its disk has no room for both, the manifest is the one to have. */
static int write_first_manifest(struct run *run)
{
    int r = run_write_manifest(run, false);
    if (!r || !run->edits)
        return r;
    run_drop_edits(run, strerror(-r));
    return run_write_manifest(run, false);
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

/* What is kept goes segment by segment: so it consists of several. */
static uint64_t segment_bytes(const struct run_options *o)
{
    if (o->segment_bytes)
        return o->segment_bytes;
    return o->keep_bytes && o->keep_bytes / KEPT_SEGMENTS < DEFAULT_SEGMENT_BYTES
               ? o->keep_bytes / KEPT_SEGMENTS
               : DEFAULT_SEGMENT_BYTES;
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
    run->segment_bytes = segment_bytes(o);
    run->segment_ns = o->segment_ns;
    run->keep_bytes = o->keep_bytes;
    run->keep_ns = o->keep_ns;
    run->durability = (enum run_durability)o->durability;
    run->sync_ns = o->sync_ns ? o->sync_ns : DEFAULT_SYNC_NS;
    identity_host(m->host, sizeof m->host);
    m->pid = (uint64_t)getpid();
    m->start_ns = clock_real_ns();
    return identity_uuid(m->run_uuid);
}

/* Also on the way of a failed run_open(): takes whatever is there. */
static void free_run(struct run *run)
{
    for (unsigned i = 0; i < run->n_codecs; i++)
        codec_free(run->codecs[i]);
    segment_deinit(&run->segment);
    text_deinit(&run->steps);
    text_deinit(&run->outcomes);
    text_deinit(&run->changes);
    pending_deinit(&run->pending);
    history_deinit(&run->history);
    direct_deinit(&run->direct);
    live_deinit(&run->live);
    counters_deinit(&run->counters);
    edit_accounts_deinit(run->edits);
    manifest_deinit(&run->manifest);
    pthread_mutex_destroy(&run->lock);
    free(run->path);
    free(run);
}

static void sooner(uint64_t *every, uint64_t ns)
{
    if (ns && ns / 2 < *every)
        *every = ns / 2;
}

/* Where nothing is to be done in time there is none. */
static void start_keeper(struct run *run, void (*begin)(void))
{
    bool syncs = run->durability == RUN_DURABILITY_INTERVAL;
    uint64_t every = MOST_KEEPER_NS;
    sooner(&every, syncs ? run->sync_ns : 0);
    sooner(&every, run->segment_ns);
    sooner(&every, run->keep_ns);
    if (!syncs && !run->segment_ns && !run->keep_ns)
        return;
    int r = keeper_start(&run->keeper, every > LEAST_KEEPER_NS ? every : LEAST_KEEPER_NS, begin,
                         run_keep, run);
    if (r)
        run_problem(
            run, NULL, "no_keeper",
            "no thread could be started for what is to be done in time: segments are closed "
            "and released, and brought to the disk, as records come");
}

/* Ids of cached tokens are compared with those of computed ones, so that they are of use beside these alone. */
static bool has_ids(const struct run_options *options)
{
    return ANY(i, options->n_sites, !strcmp(options->sites[i].name, DMI_SITE_IDS));
}

int run_open(struct err *err, const struct run_options *options, struct run **out)
{
    struct run *run = calloc(1, sizeof *run);
    if (!run)
        return err_set_errno(err, ENOMEM, "cannot start a run");
    pthread_mutex_init(&run->lock, NULL);
    pending_init(&run->pending, has_ids(options));
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
            what = "seg-000000.dmi", r = run_add_segment(run, 0);
        if (!r)
            make_edits(run, options);
        if (!r)
            what = "manifest.json", r = write_first_manifest(run);
        if (r)
            err_set_errno(err, -r, "cannot write %s in %s", what, options->out_dir);
        if (!r && options->live)
            make_live(run, options);
        if (!r)
            r = publish(err, run);
        if (r) {
            live_remove(&run->live);
            folder_remove(run->path);
        }
    }
    if (r) {
        if (fresh)
            rmdir(options->out_dir);
        free_run(run);
        return r;
    }
    if (options->latest)
        folder_link_latest(run->path);
    start_keeper(run, options->in_thread);
    *out = run;
    return 0;
}

struct dmi_counters *run_counters(struct run *run)
{
    return run->counters.map;
}

struct dmi_live *run_live(struct run *run)
{
    return run->live.map;
}

struct dmi_edit_accounts *run_edits(struct run *run)
{
    return run->edits;
}

int run_put_file(struct run *run, const char *name, const void *data, size_t n)
{
    _cleanup_(freep) char *path = folder_file(run->path, name);
    return path ? file_replace(path, data, n, run_syncs(run)) : -ENOMEM;
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

void run_refuse_id(struct run *run, uint64_t step, const char *why)
{
    pending_refuse(&run->pending, PENDING_SPAN,
                   "rows of step %" PRIu64 " of the engine belong to no request: %s", step, why);
}

void run_steps_overlap(struct run *run, uint64_t n, uint64_t number, uint64_t other)
{
    while (n--)
        pending_refuse(&run->pending, PENDING_OVERLAP,
                       "steps %" PRIu64 " and %" PRIu64
                       " of the engine, of two threads, overlap: launches meanwhile may be of no "
                       "known step (DMI_STEP_OF_THREAD says whose they are)",
                       number, other);
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

int run_request_shed(struct run *run, const char *request_id, uint64_t sequence)
{
    return pending_shed(&run->pending, request_id, sequence);
}

int run_describe(struct run *run, const char *key, const char *value)
{
    RUN_HOLD(run);
    int r = manifest_describe(&run->manifest, key, value);
    run->manifest_stale |= !r;
    return r;
}

char *run_described(struct run *run, const char *key)
{
    RUN_HOLD(run);
    const char *value = manifest_described(&run->manifest, key);
    return value ? strdup(value) : NULL;
}

static int add_change(struct run *run, const struct run_change *change)
{
    int r = run->changes.n < CHANGES_MAX_BYTES ? changes_add(&run->changes, run->n_changes, change)
                                               : -ENOSPC;
    run->n_changes += !r;
    return r;
}

int run_change(struct run *run, const struct run_change *change)
{
    RUN_HOLD(run);
    int r = add_change(run, change);
    if (!r)
        run_commit_locked(run, NULL); /* what the disk refuses now a later commit writes */
    return r;
}

int run_change_later(struct run *run, const struct run_change *change)
{
    RUN_HOLD(run);
    if (run->changes.n >= CHANGES_MAX_BYTES)
        run_commit_locked(run, NULL);
    return add_change(run, change);
}

/* ------------------------------------------------------------------------- closing */

int run_close(struct run *run)
{
    int r;
    keeper_stop(&run->keeper);
    {
        RUN_HOLD(run);
        r = run_commit_locked(run, NULL);
        int s = run_close_segment(run);
        r = r ? r : s;
        run_release(run);
        if (!r)
            r = counters_hash(&run->counters, &run->manifest.counters_hash);
        if (run->edits)
            run->manifest.edits_hash = edit_accounts_hash(run->edits);
        run->manifest.closed = r == 0;
        s = run_write_manifest(run, run_syncs(run));
        r = r ? r : s;
        if (!r)
            live_remove(&run->live);
        /* last: a reader that sees "closed" finds everything else in place */
        if (!r)
            counters_mark_closed(&run->counters);
    }
    free_run(run);
    return r;
}
