/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/outfile.h"

#include "core/any.h"
#include "core/cleanup.h"
#include "tools/common/leftover.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_PARENTS 256
#define MOST_DEPTH   4 /* of folders that an export writes */

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

static char *parent_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return !slash          ? strdup(".")
           : slash == path ? strdup("/")
                           : strndup(path, (size_t)(slash - path));
}

/* Whether the folder @path is @folder or lies in it. */
static bool lies_in(const char *path, const struct stat *folder)
{
    _cleanup_(closep) int fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    struct stat at, before = { 0 };
    for (int i = 0; fd >= 0 && i < MOST_PARENTS && !fstat(fd, &at); i++) {
        if (same_file(&at, folder))
            return true;
        if (i && same_file(&at, &before))
            return false; /* the root */
        before = at;
        int up = openat(fd, "..", O_PATH | O_DIRECTORY | O_CLOEXEC);
        closep(&fd);
        fd = up;
    }
    return false;
}

/* The folder of the run; of a lone segment the one that it lies in, if that is a run's. */
static bool stat_run(const char *run, struct stat *out)
{
    if (stat(run, out))
        return false;
    if (S_ISDIR(out->st_mode))
        return true;
    _cleanup_(freep) char *folder = parent_of(run);
    _cleanup_(freep) char *manifest = NULL;
    struct stat s;
    if (!folder || asprintf(&manifest, "%s/manifest.json", folder) < 0) {
        manifest = NULL;
        return false;
    }
    return !stat(manifest, &s) && !stat(folder, out);
}

static char *automatic_path(const char *run, const char *suffix)
{
    _cleanup_(freep) char *path = strdup(run);
    if (!path)
        return NULL;
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        path[--n] = 0;
    const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    char *out = NULL;
    return asprintf(&out, "%s%s", *name && *name != '.' ? name : "run", suffix) < 0 ? NULL : out;
}

/* Whether a link leads to something that is written as it is. */
static bool is_device(const char *path)
{
    struct stat st;
    return !stat(path, &st) && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode);
}

/* Whether @folder holds files of a run: no place for anything else. */
static bool is_run_folder(const char *folder)
{
    static const char *const names[] = { "manifest.json", "seg-000000.dmi" };
    bool found = false;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char *path = NULL;
        found |= asprintf(&path, "%s/%s", folder, names[i]) >= 0 && !access(path, F_OK);
        free(path);
    }
    return found;
}

/* Whether an export writes files of this name into a folder. */
static bool is_exported(const char *name)
{
    static const char *const ends[] = { ".npy", ".safetensors" };
    static const char *const names[] = { OUTFILE_INDEX, "index.jsonl", "qk.json" };
    size_t n = strlen(name);
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        if (n > strlen(ends[i]) && !strcmp(name + n - strlen(ends[i]), ends[i]))
            return true;
    return ANY(i, sizeof names / sizeof names[0], !strcmp(name, names[i]));
}

static DIR *list_folder(int fd)
{
    int again = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = again >= 0 ? fdopendir(again) : NULL;
    if (!dir)
        closep(&again);
    return dir;
}

static char *stranger_in(int fd, bool force, int depth);

static bool is_empty(int fd)
{
    _cleanup_(freep) char *any = stranger_in(fd, false, 0);
    return !any;
}

/* @name, or what lies in that folder, if no export wrote it; no export writes an empty folder. NULL: one did. */
static char *stranger_at(int fd, const char *name, int depth)
{
    struct stat st;
    if (fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW))
        return strdup(name);
    if (!S_ISDIR(st.st_mode) || depth == MOST_DEPTH)
        return S_ISREG(st.st_mode) && is_exported(name) ? NULL : strdup(name);
    _cleanup_(closep) int inner = openat(fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return inner < 0 || is_empty(inner) ? strdup(name) : stranger_in(inner, true, depth + 1);
}

/* The first thing in the folder that no export wrote, or, not @force, that is there at all. NULL: none. */
static char *stranger_in(int fd, bool force, int depth)
{
    DIR *dir = list_folder(fd);
    const struct dirent *e;
    char *found = dir ? NULL : strdup("what cannot be listed");
    while (!found && (e = readdir(dir)))
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
            found = force ? stranger_at(fd, e->d_name, depth) : strdup(e->d_name);
    if (dir)
        closedir(dir);
    return found;
}

static int check_folder(struct err *err, struct outfile *p)
{
    _cleanup_(closep) int fd = open(p->path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return err_set(err, -ENOTDIR, "%s is no folder: --output names the folder to write",
                       p->path);
    _cleanup_(freep) char *found = stranger_in(fd, p->force, 0);
    p->goes_on = found && p->append;
    if (p->goes_on)
        return 0;
    if (found && p->force)
        return err_set(err, -ENOTEMPTY,
                       "the folder %s holds %s, which no export wrote: --force replaces only what "
                       "an export wrote",
                       p->path, found);
    if (found)
        return err_set(err, -ENOTEMPTY,
                       "the folder %s is not empty: its files would be taken for part of this "
                       "export; name a new one with --output, replace it with --force, or go on "
                       "with a dataset with --append",
                       p->path);
    return 0;
}

static const char *option_of(const struct outfile *p)
{
    return p->option ? p->option : "--output";
}

static int check_free(struct err *err, struct outfile *p)
{
    struct stat st;
    if (lstat(p->path, &st))
        return 0;
    if (p->is_folder)
        return check_folder(err, p);
    if (S_ISDIR(st.st_mode))
        return err_set(err, -EISDIR, "%s is a folder: %s names the file to write", p->path,
                       option_of(p));
    if (p->option && (S_ISREG(st.st_mode) || (S_ISLNK(st.st_mode) && !is_device(p->path))))
        return err_set(err, -EEXIST, "%s is there already: remove it, or name another file",
                       p->path);
    if (!p->force && (S_ISREG(st.st_mode) || (S_ISLNK(st.st_mode) && !is_device(p->path))))
        return err_set(err, -EEXIST, "%s is there already: --force replaces it", p->path);
    return 0;
}

int outfile_choose(struct err *err, struct outfile *p, const char *path, const char *run,
                   const char *suffix, bool is_folder)
{
    *p = (struct outfile){ .option = p->option,
                           .is_folder = is_folder,
                           .force = p->force,
                           .append = p->append,
                           .fd = -1 };
    p->path = path ? strdup(path) : automatic_path(run, suffix);
    if (!p->path)
        return err_set_errno(err, ENOMEM, "cannot export");
    for (size_t n = strlen(p->path); n > 1 && p->path[n - 1] == '/'; n--)
        p->path[n - 1] = 0;
    _cleanup_(freep) char *parent = parent_of(p->path);
    struct stat folder, file, there;
    if (!parent)
        return err_set_errno(err, ENOMEM, "cannot export");
    bool in_run = stat_run(run, &folder) && (lies_in(parent, &folder) || lies_in(p->path, &folder));
    bool is_run = !stat(run, &file) && !stat(p->path, &there) && same_file(&file, &there);
    if (in_run || is_run)
        return err_set(err, -EPERM,
                       "%s lies in the run itself: an export there would damage the capture; name "
                       "another place with %s",
                       p->path, option_of(p));
    if (is_run_folder(parent) || is_run_folder(p->path))
        return err_set(err, -EPERM, "%s lies in the folder of a run: name another place with %s",
                       p->path, option_of(p));
    return check_free(err, p);
}

static int open_temporary(struct outfile *p)
{
    if (asprintf(&p->temporary, "%s.partial-XXXXXX", p->path) < 0) {
        p->temporary = NULL;
        return -ENOMEM;
    }
    int made = -1;
    leftover_hold();
    if (!p->is_folder)
        made = p->fd = mkostemp(p->temporary, O_CLOEXEC);
    else if (mkdtemp(p->temporary))
        made = p->fd = open(p->temporary, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int saved = errno;
    if (made >= 0)
        leftover_note(p->temporary);
    leftover_release();
    if (made >= 0)
        return 0;
    free(steal_ptr(p->temporary));
    return -saved;
}

int outfile_open(struct err *err, struct outfile *p)
{
    struct stat st;
    int r = 0;
    if (stat(p->path, &st) || S_ISREG(st.st_mode) || S_ISDIR(st.st_mode))
        r = open_temporary(p);
    else if ((p->fd = open(p->path, O_RDWR | O_CLOEXEC)) < 0)
        r = -errno;
    return r ? err_set_errno(err, -r, "cannot write %s", p->path) : 0;
}

/* With the folders that it holds. */
static void empty_folder(int fd)
{
    DIR *dir = list_folder(fd);
    if (!dir)
        return;
    const struct dirent *e;
    while ((e = readdir(dir))) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..") || !unlinkat(fd, e->d_name, 0))
            continue;
        _cleanup_(closep) int inner =
            openat(fd, e->d_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        if (inner >= 0)
            empty_folder(inner);
        unlinkat(fd, e->d_name, AT_REMOVEDIR);
    }
    closedir(dir);
}

/* An empty folder gives way to a rename; one that may be replaced changes places with the new one, and goes. */
static int keep_folder(struct outfile *p)
{
    if (!rename(p->temporary, p->path))
        return 0;
    if (!p->force || (errno != ENOTEMPTY && errno != EEXIST))
        return -errno;
    _cleanup_(closep) int old = open(p->path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    _cleanup_(freep) char *found = old >= 0 ? stranger_in(old, true, 0) : NULL;
    if (old < 0 || found)
        return -ENOTEMPTY; /* it is another one than was checked */
    if (renameat2(AT_FDCWD, p->temporary, AT_FDCWD, p->path, RENAME_EXCHANGE)) {
        empty_folder(old); /* a file system that cannot exchange */
        return rename(p->temporary, p->path) ? -errno : 0;
    }
    empty_folder(old);
    return rmdir(p->temporary) ? -errno : 0;
}

/* Never over what is there. */
static int move(int from, const char *name, int to, const char *new_name)
{
    if (!renameat2(from, name, to, new_name, RENAME_NOREPLACE))
        return 0;
    if (errno != EINVAL)
        return -errno;
    /* a file system that does not know the flag: a link does not replace either */
    return linkat(from, name, to, new_name, 0) || unlinkat(from, name, 0) ? -errno : 0;
}

static int keep_file(struct outfile *p)
{
    if (p->force)
        return rename(p->temporary, p->path) ? -errno : 0;
    return move(AT_FDCWD, p->temporary, AT_FDCWD, p->path);
}

static int move_into(int from, int to);

/* A folder that is there already gets what the new one holds. */
static int move_folder_into(int from, int to, const char *name)
{
    int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW;
    _cleanup_(closep) int inner_from = openat(from, name, flags);
    _cleanup_(closep) int inner_to = inner_from < 0 ? -1 : openat(to, name, flags);
    int r = inner_to < 0 ? -EEXIST : move_into(inner_from, inner_to);
    return r ? r : unlinkat(from, name, AT_REMOVEDIR) ? -errno : 0;
}

static int move_into(int from, int to)
{
    DIR *dir = list_folder(from);
    const struct dirent *e;
    int r = dir ? 0 : -errno;
    while (!r && (e = readdir(dir))) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
            continue;
        r = move(from, e->d_name, to, e->d_name);
        if (r == -EEXIST)
            r = move_folder_into(from, to, e->d_name);
    }
    if (dir)
        closedir(dir);
    return r;
}

/* The index first: what it names and is not there is known to be missing, what it does not name is nobody's. */
static int merge_folder(struct outfile *p)
{
    _cleanup_(closep) int to = open(p->path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (to < 0 || renameat(p->fd, OUTFILE_INDEX, to, OUTFILE_INDEX))
        return -errno;
    int r = move_into(p->fd, to);
    return r ? r : rmdir(p->temporary) ? -errno : 0;
}

int outfile_keep(struct err *err, struct outfile *p)
{
    leftover_hold();
    int r = !p->temporary  ? 0
            : p->goes_on   ? merge_folder(p)
            : p->is_folder ? keep_folder(p)
                           : keep_file(p);
    if (!r)
        leftover_forget(p->temporary);
    leftover_release();
    if (r)
        return err_set_errno(err, -r, "cannot give %s its name", p->path);
    free(steal_ptr(p->temporary));
    closep(&p->fd);
    p->fd = -1;
    return 0;
}

void outfile_discard(struct outfile *p)
{
    if (p->temporary && p->is_folder && p->fd >= 0)
        empty_folder(p->fd);
    closep(&p->fd);
    p->fd = -1;
    if (p->temporary)
        p->is_folder ? rmdir(p->temporary) : unlink(p->temporary);
    leftover_forget(p->temporary);
    free(steal_ptr(p->temporary));
}

void outfile_deinit(struct outfile *p)
{
    outfile_discard(p);
    free(p->path);
    p->path = NULL;
}
