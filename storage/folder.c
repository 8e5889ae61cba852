/* SPDX-License-Identifier: Apache-2.0 */
#include "storage/folder.h"

#include "core/cleanup.h"
#include "storage/names.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

int folder_create(struct err *err, const char *out_dir, char **path)
{
    if (mkdir(out_dir, 0700) && errno != EEXIST)
        return err_set_errno(err, errno, "cannot make the folder %s", out_dir);
    _cleanup_(freep) char *parent = realpath(out_dir, NULL);
    if (!parent)
        return err_set_errno(err, errno, "cannot resolve %s", out_dir);
    char *made = folder_file(parent, ".dmi-XXXXXX");
    if (!made)
        return err_set_errno(err, ENOMEM, "cannot name a run's folder");
    if (!mkdtemp(made)) { /* 0700 */
        int r = err_set_errno(err, errno, "cannot make a folder in %s", out_dir);
        free(made);
        return r;
    }
    *path = made;
    return 0;
}

static void format_start(uint64_t start_ns, char *out, size_t n_out)
{
    time_t seconds = (time_t)(start_ns / 1000000000u);
    struct tm tm = { 0 };
    gmtime_r(&seconds, &tm);
    size_t n = strftime(out, n_out, "%Y%m%dT%H%M%S", &tm);
    snprintf(out + n, n_out - n, ".%06uZ", (unsigned)(start_ns % 1000000000u / 1000u));
}

int folder_publish(struct err *err, char **path, const char *host, uint64_t pid, uint64_t start_ns)
{
    char start[64];
    format_start(start_ns, start, sizeof start);
    int n_parent = (int)(strrchr(*path, '/') - *path);
    /* two runs of one pid in one microsecond: a process that forked and died, or a test */
    for (int again = 0; again < 100; again++) {
        char suffix[16] = "";
        if (again)
            snprintf(suffix, sizeof suffix, "-%d", again);
        _cleanup_(freep) char *name = NULL;
        if (asprintf(&name, "%.*s/%s-%llu-%s%s", n_parent, *path, host, (unsigned long long)pid,
                     start, suffix) < 0) {
            name = NULL;
            return err_set_errno(err, ENOMEM, "cannot name a run's folder");
        }
        if (!rename(*path, name)) {
            free(*path);
            *path = steal_ptr(name);
            return 0;
        }
        if (errno != EEXIST && errno != ENOTEMPTY)
            return err_set_errno(err, errno, "cannot make the folder %s", name);
    }
    return err_set_errno(err, EEXIST, "cannot make a folder beside %s", *path);
}

void folder_link_latest(const char *path)
{
    const char *name = strrchr(path, '/') + 1;
    int n_parent = (int)(name - path);
    struct stat st;
    _cleanup_(freep) char *link = NULL;
    _cleanup_(freep) char *made = NULL;
    if (asprintf(&link, "%.*s" RUN_LATEST, n_parent, path) < 0 ||
        asprintf(&made, "%.*s." RUN_LATEST "-%d", n_parent, path, (int)getpid()) < 0)
        return;
    if (!lstat(link, &st) && !S_ISLNK(st.st_mode))
        return;   /* the user's own */
    unlink(made); /* of a process of that number that was killed here */
    if (symlink(name, made) || rename(made, link)) {
        unlink(made);
        unlink(link);
    }
}

static int sync_one(const char *path)
{
    _cleanup_(closep) int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 || fsync(fd) ? -errno : 0;
}

int folder_sync(const char *path)
{
    _cleanup_(freep) char *parent = strndup(path, (size_t)(strrchr(path, '/') - path));
    if (!parent)
        return -ENOMEM;
    int r = sync_one(path);
    return r ? r : sync_one(*parent ? parent : "/");
}

char *folder_file(const char *path, const char *name)
{
    char *out = NULL;
    return asprintf(&out, "%s/%s", path, name) < 0 ? NULL : out;
}

void folder_remove(const char *path)
{
    static const char *const names[] = { "manifest.json", "manifest.json.tmp", "spec.yaml",
                                         "spec.yaml.tmp", "counters",          "edits",
                                         "seg-000000.dmi" };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        _cleanup_(freep) char *file = folder_file(path, names[i]);
        if (file)
            unlink(file);
    }
    rmdir(path);
}
