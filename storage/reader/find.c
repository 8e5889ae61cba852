/* SPDX-License-Identifier: Apache-2.0 */
/* Which runs a path stands for: a run itself, or of a folder with several those of the command that was started last. */
#include "core/any.h"
#include "core/cleanup.h"
#include "core/regular.h"
#include "storage/names.h"
#include "storage/object.h"
#include "storage/reader/reader_private.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* What a manifest says of a run, for those who choose among several. Zeroes where there is none. */
struct about {
    char *job;
    uint64_t start_ns;
};

static struct about about_of(const char *run)
{
    struct err ignored = { 0 };
    struct about out = { 0 };
    uint64_t n;
    _cleanup_(freep) char *path = NULL;
    if (asprintf(&path, "%s/manifest.json", run) < 0)
        path = NULL;
    _cleanup_(freep) char *text = path ? regular_read(&ignored, path, DMI_MAX_JSON, &n) : NULL;
    json_t *m = text ? object_parse(text, n) : NULL;
    const char *job = object_text(m, "job");
    out.job = job ? strdup(job) : NULL;
    out.start_ns = object_number(m, "start_realtime_ns");
    json_decref(m);
    return out;
}

static const char *last_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Which of the runs the folder's link names. Return: @n: none of them. */
static size_t linked(const char *folder, char *const *paths, size_t n)
{
    char name[NAME_MAX + 1];
    _cleanup_(freep) char *link = NULL;
    if (asprintf(&link, "%s/" RUN_LATEST, folder) < 0)
        link = NULL;
    ssize_t n_name = link ? readlink(link, name, sizeof name - 1) : -1;
    name[n_name > 0 ? n_name : 0] = 0;
    return FIRST(i, n, !strcmp(last_name(paths[i]), name), i, n);
}

/* The run that was started last: the link was set in that order, whatever a clock says. */
static size_t newest(const char *folder, const struct reader_found *f, const struct about *about)
{
    size_t found = linked(folder, f->paths, f->n);
    if (found < f->n)
        return found;
    found = 0;
    for (size_t i = 1; i < f->n; i++)
        if (about[i].start_ns >= about[found].start_ns)
            found = i;
    return found;
}

/* Leaves the runs of the newest one's command. */
static int leave_newest(const char *folder, struct reader_found *f)
{
    struct about *about = calloc(f->n + 1, sizeof *about);
    if (!about)
        return -ENOMEM;
    for (size_t i = 0; i < f->n; i++)
        about[i] = about_of(f->paths[i]);
    size_t last = newest(folder, f, about), n = 0;
    const char *job = about[last].job;
    for (size_t i = 0; i < f->n; i++) {
        bool same = i == last || (job && about[i].job && !strcmp(job, about[i].job));
        if (i == last)
            f->newest = n;
        if (same)
            f->paths[n++] = f->paths[i];
        else
            free(f->paths[i]);
    }
    for (size_t i = 0; i < f->n; i++)
        free(about[i].job);
    free(about);
    f->n_beside = f->n - n;
    f->n = n;
    return 0;
}

static int of_folder(struct err *err, const char *folder, struct reader_found *f)
{
    if (!(f->folder = strdup(folder)))
        return err_set_errno(err, ENOMEM, "cannot open %s", folder);
    TRY(reader_list_runs(err, folder, &f->paths, &f->n));
    if (!f->n)
        return err_set(err, -ENOENT,
                       "%s is no run: no manifest.json and no seg-*.dmi in it, nor in "
                       "a folder of it",
                       folder);
    return f->n > 1 && leave_newest(folder, f)
               ? err_set_errno(err, ENOMEM, "cannot open %s", folder)
               : 0;
}

/* FOLDER of FOLDER/latest, where that is a link or is not there. Return: NULL: it is something else, or there is no memory. */
static char *folder_of_latest(const char *path)
{
    struct stat st;
    _cleanup_(freep) char *own = strdup(path);
    if (!own)
        return NULL;
    for (size_t n = strlen(own); n > 1 && own[n - 1] == '/'; n--)
        own[n - 1] = 0;
    if (strcmp(last_name(own), RUN_LATEST) != 0 || (!lstat(own, &st) && !S_ISLNK(st.st_mode)))
        return NULL;
    char *slash = strrchr(own, '/');
    if (!slash)
        return strdup(".");
    slash[slash == own] = 0;
    return steal_ptr(own);
}

int reader_find_runs(struct err *err, const char *path, struct reader_found *out)
{
    struct stat st;
    _cleanup_(freep) char *folder = folder_of_latest(path);
    *out = (struct reader_found){ 0 };
    if (folder && !stat(folder, &st)) {
        int res = of_folder(err, folder, out);
        out->is_named = true;
        out->n_beside = 0;
        return res;
    }
    if (stat(path, &st))
        return err_set_errno(err, errno, "cannot open %s", path);
    if (S_ISDIR(st.st_mode) && !reader_is_run(path))
        return of_folder(err, path, out);
    if (!(out->paths = calloc(1, sizeof *out->paths)) || !(out->paths[0] = strdup(path)))
        return err_set_errno(err, ENOMEM, "cannot open %s", path);
    out->n = 1;
    return 0;
}

void reader_found_deinit(struct reader_found *f)
{
    reader_free_paths(f->paths, f->n);
    free(f->folder);
    *f = (struct reader_found){ 0 };
}

int reader_say_several(struct err *err, const struct reader_found *f)
{
    char paths[300] = "";
    for (size_t i = 0; i < f->n; i++) {
        size_t used = strlen(paths);
        snprintf(paths + used, sizeof paths - used, "%s%s", used ? ", " : "", f->paths[i]);
    }
    *err = (struct err){ 0 };
    return err_set(err, -ENOTUNIQ, "%s holds %zu runs of one command, name one of them: %s",
                   f->folder, f->n, paths);
}
