/* SPDX-License-Identifier: Apache-2.0 */
#include "storage/run.h"

#include "core/atomic.h"
#include "core/cleanup.h"
#include "core/clock.h"
#include "storage/chunk.h"
#include "storage/file.h"
#include "storage/hash.h"
#include "storage/manifest.h"
#include "storage/segment.h"
#include "storage/steps.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define DEFAULT_SEGMENT_BYTES (1ull << 30)
#define MAX_CODECS            16

struct run {
    char *path;
    struct manifest manifest;
    bool manifest_stale;
    uint64_t segment_bytes;
    enum run_fsync fsync;

    struct file counters_file;
    struct dmi_counters *counters; /* a shared mapping */

    pthread_mutex_t lock; /* all below, and the manifest */
    struct segment segment;
    uint64_t next_sequence;
    struct text steps; /* entries that wait for the next chunk */
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

static int make_uuid(uint8_t uuid[16])
{
    size_t n = 0;
    while (n < 16) {
        ssize_t r = getrandom(uuid + n, 16 - n, 0);
        if (r < 0 && errno != EINTR)
            return -errno;
        n += r > 0 ? (size_t)r : 0;
    }
    uuid[6] = (uint8_t)((uuid[6] & 0x0f) | 0x40); /* RFC 4122, version 4 */
    uuid[8] = (uint8_t)((uuid[8] & 0x3f) | 0x80);
    return 0;
}

static void host_name(char *out, size_t n)
{
    if (gethostname(out, n))
        snprintf(out, n, "localhost");
    out[n - 1] = 0;
    for (char *c = out; *c; c++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.", *c))
            *c = '_';
    if (!*out || *out == '.')
        *out = 'h';
}

/* A hidden folder, which gets its name when all is in it: readers never see half a run. */
static int make_folder(struct err *err, struct run *run, const char *out_dir)
{
    if (mkdir(out_dir, 0700) && errno != EEXIST)
        return err_set_errno(err, errno, "cannot make the folder %s", out_dir);
    /* absolute: the host may change its working directory while we write */
    _cleanup_(freep) char *parent = realpath(out_dir, NULL);
    char *path = NULL;
    if (!parent)
        return err_set_errno(err, errno, "cannot resolve %s", out_dir);
    if (asprintf(&path, "%s/.dmi-XXXXXX", parent) < 0)
        return err_set_errno(err, ENOMEM, "cannot name a run's folder");
    if (!mkdtemp(path)) { /* 0700 */
        int r = err_set_errno(err, errno, "cannot make a folder in %s", out_dir);
        free(path);
        return r;
    }
    run->path = path;
    return 0;
}

static int rename_files(struct run *run, const char *path)
{
    char *counters = NULL, *segment = NULL;
    if (asprintf(&counters, "%s/counters", path) < 0)
        return -ENOMEM;
    if (asprintf(&segment, "%s/" DMI_SEGMENT_NAME, path, 0u) < 0) {
        free(counters);
        return -ENOMEM;
    }
    free(run->counters_file.path);
    free(run->segment.file.path);
    run->counters_file.path = counters;
    run->segment.file.path = segment;
    return 0;
}

/* Gives the folder its name. */
static int publish(struct err *err, struct run *run)
{
    const struct manifest *m = &run->manifest;
    time_t seconds = (time_t)(m->start_ns / 1000000000u);
    struct tm tm = { 0 };
    gmtime_r(&seconds, &tm);
    char start[64];
    size_t n = strftime(start, sizeof start, "%Y%m%dT%H%M%S", &tm);
    snprintf(start + n, sizeof start - n, ".%06uZ", (unsigned)(m->start_ns % 1000000000u / 1000u));
    int n_parent = (int)(strrchr(run->path, '/') - run->path);
    /* two runs of one pid in one microsecond: a process that forked and died, or a test */
    for (int again = 0; again < 100; again++) {
        char suffix[16] = "";
        if (again)
            snprintf(suffix, sizeof suffix, "-%d", again);
        _cleanup_(freep) char *path = NULL;
        if (asprintf(&path, "%.*s/%s-%llu-%s%s", n_parent, run->path, m->host,
                     (unsigned long long)m->pid, start, suffix) < 0) {
            path = NULL;
            return err_set_errno(err, ENOMEM, "cannot name a run's folder");
        }
        if (!rename(run->path, path)) {
            free(run->path);
            run->path = steal_ptr(path);
            int r = rename_files(run, run->path);
            return r ? err_set_errno(err, -r, "cannot name a run's folder") : 0;
        }
        if (errno != EEXIST && errno != ENOTEMPTY)
            return err_set_errno(err, errno, "cannot make the folder %s", path);
    }
    return err_set_errno(err, EEXIST, "cannot make a folder beside %s", run->path);
}

static char *path_of(const struct run *run, const char *name)
{
    char *path = NULL;
    return asprintf(&path, "%s/%s", run->path, name) < 0 ? NULL : path;
}

static int make_counters(struct run *run, uint32_t n_sites)
{
    size_t n = sizeof(struct dmi_counters) + n_sites * sizeof(struct dmi_site_counters);
    _cleanup_(freep) struct dmi_counters *zero = calloc(1, n);
    _cleanup_(freep) char *path = path_of(run, "counters");
    if (!zero || !path)
        return -ENOMEM;
    zero->magic = DMI_COUNTERS_MAGIC;
    zero->version = DMI_COUNTERS_VERSION;
    zero->n_sites = n_sites;
    memcpy(zero->run_uuid, run->manifest.run_uuid, sizeof zero->run_uuid);
    zero->state = DMI_COUNTERS_RUNNING;
    zero->pid = run->manifest.pid;
    zero->start_realtime_ns = run->manifest.start_ns;
    int r = file_create(&run->counters_file, path);
    if (r)
        return r;
    /* written, not only sized: a store to a hole on a full disk would be a SIGBUS in the host */
    struct iovec piece = { zero, n };
    r = file_write_at(&run->counters_file, &piece, 1, 0);
    if (r)
        return r;
    void *map = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, run->counters_file.fd, 0);
    if (map == MAP_FAILED)
        return -errno;
    run->counters = map;
    run->manifest.n_counters = n;
    /*
     * A lock of this process, which ends with it and which children do not inherit: readers tell a
     * run that goes on from one that was killed. Some network file systems have none: then not.
     */
    struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
    if (fcntl(run->counters_file.fd, F_SETLK, &lock)) {
        /* readers will say "killed, or still running" */
    }
    return 0;
}

static int write_manifest(struct run *run, bool sync)
{
    _cleanup_(freep) char *path = path_of(run, "manifest.json");
    if (!path)
        return -ENOMEM;
    _cleanup_(text_deinit) struct text text = { 0 };
    manifest_write(&text, &run->manifest);
    if (text.failed)
        return -ENOMEM;
    int r = file_replace(path, text.data, text.n, sync);
    run->manifest_stale = r != 0;
    return r;
}

static int write_spec(struct run *run, const struct run_options *o)
{
    _cleanup_(freep) char *path = path_of(run, "spec.yaml");
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
    host_name(m->host, sizeof m->host);
    m->pid = (uint64_t)getpid();
    m->start_ns = clock_real_ns();
    return make_uuid(m->run_uuid);
}

static int add_segment(struct run *run, uint32_t number)
{
    struct manifest *m = &run->manifest;
    if (number == m->segments_room) {
        size_t room = m->segments_room ? 2 * m->segments_room : 8;
        struct manifest_segment *grown = realloc(m->segments, room * sizeof *grown);
        if (!grown)
            return -ENOMEM;
        m->segments = grown;
        m->segments_room = room;
    }
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
    if (run->counters)
        munmap(run->counters, run->manifest.n_counters);
    file_deinit(&run->counters_file);
    manifest_deinit(&run->manifest);
    pthread_mutex_destroy(&run->lock);
    free(run->path);
    free(run);
}

static void remove_files(const struct run *run)
{
    static const char *const names[] = { "manifest.json", "manifest.json.tmp", "spec.yaml",
                                         "spec.yaml.tmp", "counters",          "seg-000000.dmi" };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        _cleanup_(freep) char *path = path_of(run, names[i]);
        if (path)
            unlink(path);
    }
    rmdir(run->path);
}

int run_open(struct err *err, const struct run_options *options, struct run **out)
{
    struct run *run = calloc(1, sizeof *run);
    if (!run)
        return err_set_errno(err, ENOMEM, "cannot start a run");
    pthread_mutex_init(&run->lock, NULL);
    run->segment.file.fd = run->counters_file.fd = -1;
    bool fresh = access(options->out_dir, F_OK) != 0;
    int r = copy_options(run, options);
    if (r)
        err_set_errno(err, -r, "cannot describe the run");
    else
        r = make_folder(err, run, options->out_dir);
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
            remove_files(run);
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
    return run->counters;
}

const char *run_path(const struct run *run)
{
    return run->path;
}

/* ------------------------------------------------------------------------- steps */

int run_step(struct run *run, uint64_t sequence, const struct dmi_step *step)
{
    int r;
    {
        HOLD(run);
        r = steps_add(&run->steps, sequence, step);
    }
    if (r)
        atomic_add_relaxed(&run->counters->steps_refused, 1);
    return r;
}

/* ------------------------------------------------------------------------- appending */

static struct codec *take_codec(struct run *run)
{
    HOLD(run);
    return run->n_codecs ? run->codecs[--run->n_codecs] : NULL;
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

/* Pending steps and, where there is one, a chunk of records, in one commit. Locked. */
static int commit(struct run *run, struct chunk *records)
{
    if (run->segment.closed) {
        int r = add_segment(run, run->segment.number + 1);
        if (r)
            return r;
        run->manifest_stale = true;
    }
    struct chunk chunks[2] = { 0 };
    size_t n = 0;
    if (run->steps.n)
        chunk_from_meta(&chunks[n++], DMI_CHUNK_STEPS, (uint8_t *)run->steps.data, run->steps.n);
    if (records)
        chunks[n++] = *records;
    if (!n)
        return 0;
    int r =
        segment_append(&run->segment, chunks, n, run->next_sequence, run->fsync == RUN_FSYNC_CHUNK);
    if (r)
        return r;
    run->next_sequence += n;
    run->steps.n = 0;
    if (run->segment.end >= run->segment_bytes || segment_index_is_full(&run->segment))
        rotate(run);
    else if (run->manifest_stale)
        write_manifest(run, false);
    return 0;
}

int run_append(struct run *run, const struct run_record *records, size_t n_records)
{
    if (!n_records)
        return 0;
    for (size_t i = 0; i < n_records; i++)
        if (records[i].site >= run->counters->n_sites)
            return -EINVAL;
    struct codec *codec = take_codec(run);
    if (!codec && !(codec = codec_new()))
        return -ENOMEM;
    struct chunk chunk = { 0 };
    int r = chunk_records(&chunk, codec, records, n_records); /* the long part, not locked */
    give_codec(run, codec);
    if (!r) {
        HOLD(run);
        r = commit(run, &chunk);
    }
    chunk_deinit(&chunk);
    return r;
}

void run_problem(struct run *run, const char *site, const char *reason, const char *sentence)
{
    HOLD(run);
    manifest_add_problem(&run->manifest, site, reason, sentence);
    run->manifest_stale = true;
}

int run_flush(struct run *run)
{
    HOLD(run);
    int r = commit(run, NULL);
    int w = write_manifest(run, run->fsync == RUN_FSYNC_CHUNK);
    return r ? r : w;
}

/* ------------------------------------------------------------------------- closing */

/* Of the counters with the state "closed", which they get last (docs/format.md 9). */
static int hash_counters(struct run *run)
{
    size_t n = run->manifest.n_counters;
    _cleanup_(freep) struct dmi_counters *copy = malloc(n);
    if (!copy)
        return -ENOMEM;
    memcpy(copy, run->counters, n);
    copy->state = DMI_COUNTERS_CLOSED;
    run->manifest.counters_hash = hash_bytes(copy, n);
    return 0;
}

int run_close(struct run *run)
{
    int r;
    {
        HOLD(run);
        r = commit(run, NULL);
        int s = close_segment(run);
        r = r ? r : s;
        if (!r)
            r = hash_counters(run);
        run->manifest.closed = r == 0;
        s = write_manifest(run, run->fsync != RUN_FSYNC_NEVER);
        r = r ? r : s;
        /* last: a reader that sees "closed" finds everything else in place */
        if (!r)
            atomic_store_release(&run->counters->state, (uint64_t)DMI_COUNTERS_CLOSED);
    }
    free_run(run);
    return r;
}
