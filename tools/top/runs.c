/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/top/runs.h"

#include "core/any.h"
#include "core/cleanup.h"
#include "core/clock.h"
#include "core/err.h"
#include "core/grow.h"
#include "storage/names.h"
#include "storage/object.h"

#include <dmi/format.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_RUNS 1024         /* that are looked at at a time */
#define STAYS_NS 60000000000u /* for so long a run that has ended stays in the picture */

/* ------------------------------------------------------------------------- a run */

static void run_free(struct top_run *r)
{
    for (size_t i = 0; i < r->n_sites; i++)
        free(r->sites[i]);
    free(r->sites);
    free(r->job);
    free(r->host);
    snapshot_deinit(&r->before);
    snapshot_deinit(&r->now);
    free(r->path);
    free(r);
}

static char *copy_text(const json_t *object, const char *key)
{
    const char *s = object_text(object, key);
    return s ? strdup(s) : NULL;
}

/* Names of sites; one that has none is called by its number. A place for edits has no records: NULL. Return: 0 or -ENOMEM. */
static int copy_sites(struct top_run *r, const json_t *list)
{
    size_t n = json_array_size(list);
    r->sites = calloc(n + 1, sizeof *r->sites);
    for (; r->sites && r->n_sites < n; r->n_sites++) {
        char **to = &r->sites[r->n_sites];
        const json_t *site = json_array_get(list, r->n_sites);
        if (json_object_get(site, "action"))
            continue;
        *to = copy_text(site, "name");
        if (!*to && asprintf(to, "%zu", r->n_sites) < 0)
            return -ENOMEM;
    }
    return r->sites ? 0 : -ENOMEM;
}

/* Return: 0 or -errno with a sentence. */
static int take_manifest(struct err *err, struct top_run *r, const json_t *m)
{
    const json_t *sites = json_object_get(json_object_get(m, "dictionary"), "sites");
    if (strcmp(object_text_or(m, "format", ""), "dmi-run"))
        return err_set(err, -EBADMSG, "%s/manifest.json: is no manifest", r->path);
    if (object_number(m, "version") != DMI_FORMAT_VERSION)
        return err_set(err, -ENOTSUP, "%s/manifest.json: is of another version than %d", r->path,
                       DMI_FORMAT_VERSION);
    if (!object_uuid(m, "uuid", r->uuid) || json_array_size(sites) > DMI_MAX_SITES)
        return err_set(err, -EBADMSG, "%s/manifest.json: is damaged", r->path);
    r->job = copy_text(m, "job");
    r->host = copy_text(m, "host");
    r->pid = object_number(m, "pid");
    r->start_ns = object_number(m, "start_realtime_ns");
    r->has_process = alive_said(m, &r->process) != NULL;
    return copy_sites(r, sites) ? err_set(err, -ENOMEM, "no memory") : 0;
}

/* Return: a descriptor; -errno with a sentence. */
static int open_folder_of(struct err *err, const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 && errno == EACCES)
        return err_set(err, -EACCES, "%s: only the owner of a run may look at it", path);
    return fd < 0 ? err_set_errno(err, errno, "cannot open %s", path) : fd;
}

static int load_manifest(struct err *err, struct top_run *r)
{
    _cleanup_(closep) int dir = open_folder_of(err, r->path);
    _cleanup_(freep) void *data = NULL;
    size_t n;
    if (dir < 0)
        return dir;
    int res = snapshot_load(err, dir, r->path, "manifest.json", DMI_MAX_JSON, &data, &n);
    if (res == -ENOENT)
        return err_set(err, res, "%s: is no run: there is no manifest.json in it", r->path);
    if (res)
        return res;
    json_t *m = object_parse(data, n);
    res = m ? take_manifest(err, r, m)
            : err_set(err, -EBADMSG, "%s/manifest.json: is no JSON", r->path);
    json_decref(m);
    return res;
}

/* Return: NULL with a sentence in @err. */
static struct top_run *run_new(struct err *err, const char *path)
{
    struct top_run *r = calloc(1, sizeof *r);
    if (!r || !(r->path = strdup(path))) {
        free(r);
        err_set(err, -ENOMEM, "no memory");
        return NULL;
    }
    const char *slash = strrchr(r->path, '/');
    r->name = slash && slash[1] ? slash + 1 : r->path;
    if (!load_manifest(err, r))
        return r;
    run_free(r);
    return NULL;
}

/* What was now is before. Of a run that cannot be read the last snapshot stays. */
static void run_refresh(struct top_run *r)
{
    struct snapshot next;
    r->refused = r->live_refused = (struct err){ 0 };
    _cleanup_(closep) int dir = open_folder_of(&r->refused, r->path);
    struct snapshot_of of = { dir, r->path, .n_sites = r->n_sites,
                              .process = r->has_process ? &r->process : NULL };
    memcpy(of.uuid, r->uuid, sizeof of.uuid);
    if (dir < 0 || snapshot_take(&r->refused, &r->live_refused, &of, &next))
        return;
    snapshot_deinit(&r->before);
    r->before = r->now;
    r->now = next;
    r->shown = r->shown || next.state == TOP_RUNNING;
    if (next.state == TOP_RUNNING)
        r->ended_ns = 0;
    else if (!r->ended_ns)
        r->ended_ns = next.mono_ns;
}

/* ------------------------------------------------------------------------- those of a folder */

static struct top_run *find(const struct top_runs *runs, const char *path)
{
    return FIRST(i, runs->n, !strcmp(runs->list[i]->path, path), runs->list[i], NULL);
}

static int path_order(const void *pa, const void *pb)
{
    return strcmp((*(struct top_run *const *)pa)->path, (*(struct top_run *const *)pb)->path);
}

static int add(struct err *err, struct top_runs *runs, struct top_run *run)
{
    if (grow((void **)&runs->list, runs->n, &runs->room, sizeof *runs->list, 16)) {
        run_free(run);
        return err_set(err, -ENOMEM, "no memory");
    }
    runs->list[runs->n++] = run;
    qsort(runs->list, runs->n, sizeof *runs->list, path_order);
    return 0;
}

static bool is_link(int dir, const char *name)
{
    struct stat st;
    return !fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) && S_ISLNK(st.st_mode);
}

static bool has_manifest(int dir, const char *name)
{
    _cleanup_(freep) char *path = NULL;
    struct stat st;
    if (asprintf(&path, "%s/manifest.json", name) < 0)
        path = NULL;
    return path && !fstatat(dir, path, &st, AT_SYMLINK_NOFOLLOW) && S_ISREG(st.st_mode);
}

/* A run that cannot be read is passed over, and named where nothing else is found: @first_err. */
static int look_at(struct err *err, struct err *first_err, struct top_runs *runs, const char *name)
{
    _cleanup_(freep) char *path = NULL;
    if (asprintf(&path, "%s/%s", runs->path, name) < 0) {
        path = NULL;
        return err_set(err, -ENOMEM, "no memory");
    }
    if (find(runs, path) || runs->n >= MAX_RUNS)
        return 0;
    struct top_run *run = run_new(first_err, path);
    return run ? add(err, runs, run) : 0;
}

static void closedirp(DIR **dir)
{
    if (*dir)
        closedir(*dir);
}

static int list_folder(struct err *err, struct err *first_err, struct top_runs *runs)
{
    _cleanup_(closedirp) DIR *dir = opendir(runs->path);
    int r = 0;
    if (!dir && errno == EACCES)
        return err_set(err, -EACCES, "%s: only the owner of a run may look at it", runs->path);
    if (!dir)
        return err_set_errno(err, errno, "cannot open %s", runs->path);
    for (const struct dirent *e; !r && (e = readdir(dir));)
        if (e->d_name[0] != '.' &&
            !(!strcmp(e->d_name, RUN_LATEST) && is_link(dirfd(dir), e->d_name)) &&
            has_manifest(dirfd(dir), e->d_name))
            r = look_at(err, first_err, runs, e->d_name);
    return r;
}

static bool same_job(const struct top_run *a, const struct top_run *b)
{
    return a->job && b->job && !strcmp(a->job, b->job);
}

/* A rank that has died belongs to the picture. */
static void show_their_jobs(struct top_runs *runs)
{
    for (size_t i = 0; i < runs->n; i++)
        for (size_t k = 0; k < runs->n && !runs->list[i]->shown; k++)
            runs->list[i]->shown = runs->list[k]->shown && same_job(runs->list[i], runs->list[k]) &&
                                   runs->list[i]->now.counters;
}

/* Ended runs of earlier commands are not looked at again. */
static void drop_others(struct top_runs *runs)
{
    for (size_t i = 0; i < runs->n; i++)
        if (!runs->list[i]->shown && runs->list[i]->now.counters) {
            snapshot_deinit(&runs->list[i]->before);
            snapshot_deinit(&runs->list[i]->now);
        }
}

static bool job_runs(const struct top_runs *runs, const struct top_run *run)
{
    return ANY(i, runs->n,
               runs->list[i]->now.state == TOP_RUNNING && runs->list[i]->now.counters &&
                   (runs->list[i] == run || same_job(runs->list[i], run)));
}

/* Or whoever looks for days would have all that ever ran. */
static void forget_ended(struct top_runs *runs)
{
    uint64_t now = clock_mono_ns();
    for (size_t i = 0; i < runs->n; i++) {
        struct top_run *r = runs->list[i];
        if (r->shown && r->ended_ns && now - r->ended_ns > STAYS_NS && !job_runs(runs, r))
            r->shown = false;
    }
    drop_others(runs);
}

static const struct top_run *newest(const struct top_runs *runs)
{
    const struct top_run *found = NULL;
    for (size_t i = 0; i < runs->n; i++)
        if (runs->list[i]->now.counters && (!found || runs->list[i]->start_ns > found->start_ns))
            found = runs->list[i];
    return found;
}

static int say_none(struct err *err, const struct err *first_err, const struct top_runs *runs)
{
    const struct top_run *last = newest(runs);
    if (first_err->code && !last)
        return err_set(err, first_err->code, "%s", first_err->msg);
    for (size_t i = 0; i < runs->n && !last; i++)
        if (runs->list[i]->refused.code)
            return err_set(err, runs->list[i]->refused.code, "%s", runs->list[i]->refused.msg);
    if (!last)
        return err_set(err, -ENOENT, "%s: there is no run in it", runs->path);
    return err_set(err, -ENOENT,
                   "%s: no run in it is being written; the last one, %s, %s; name it to look at it",
                   runs->path, last->name,
                   last->now.state == TOP_CLOSED ? "was closed" : "was killed");
}

/* ------------------------------------------------------------------------- all of them */

static const char *default_path(void)
{
    const char *out = getenv("DMI_OUT");
    if (out && *out)
        return out;
    return access("dmi-out", F_OK) ? "." : "dmi-out";
}

static int open_folder(struct err *err, struct top_runs *runs)
{
    struct err first_err = { 0 };
    TRY(list_folder(err, &first_err, runs));
    for (size_t i = 0; i < runs->n; i++)
        run_refresh(runs->list[i]);
    show_their_jobs(runs);
    int r = runs_any_running(runs) ? 0 : say_none(err, &first_err, runs);
    drop_others(runs);
    return r;
}

static int open_one(struct err *err, struct top_runs *runs)
{
    struct top_run *run = run_new(err, runs->path);
    TRY(run ? add(err, runs, run) : err->code);
    run_refresh(run);
    run->shown = true;
    return run->refused.code ? err_set(err, run->refused.code, "%s", run->refused.msg) : 0;
}

int runs_open(struct err *err, const char *path, struct top_runs *out)
{
    path = path ? path : default_path();
    *out = (struct top_runs){ .path = strdup(path) };
    if (!out->path)
        return err_set(err, -ENOMEM, "no memory");
    for (size_t n = strlen(out->path); n > 1 && out->path[n - 1] == '/'; n--)
        out->path[n - 1] = 0;
    out->one = has_manifest(AT_FDCWD, out->path);
    return out->one ? open_one(err, out) : open_folder(err, out);
}

int runs_refresh(struct err *err, struct top_runs *runs)
{
    struct err first_err = { 0 };
    size_t n_before = runs->n;
    int r = runs->one ? 0 : list_folder(err, &first_err, runs);
    for (size_t i = 0; !r && i < runs->n; i++)
        if (runs->list[i]->shown || runs->n != n_before)
            run_refresh(runs->list[i]);
    if (runs->n != n_before)
        show_their_jobs(runs);
    if (!runs->one)
        forget_ended(runs);
    return r;
}

bool runs_any_running(const struct top_runs *runs)
{
    return ANY(i, runs->n, runs->list[i]->shown && runs->list[i]->now.state == TOP_RUNNING);
}

void runs_deinit(struct top_runs *runs)
{
    for (size_t i = 0; i < runs->n; i++)
        run_free(runs->list[i]);
    free(runs->list);
    free(runs->path);
    *runs = (struct top_runs){ 0 };
}
