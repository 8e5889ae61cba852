/* SPDX-License-Identifier: Apache-2.0 */
#include "read/runs.h"

#include "core/cleanup.h"
#include "core/grow.h"
#include "core/sorted.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool is_segment(const struct dirent *e)
{
    unsigned number;
    int end = 0;
    return sscanf(e->d_name, "seg-%6u.dmi%n", &number, &end) == 1 && end && !e->d_name[end];
}

static bool is_run(const char *path)
{
    DIR *dir = opendir(path);
    const struct dirent *e = NULL;
    while (dir && (e = readdir(dir)))
        if (!strcmp(e->d_name, "manifest.json") || is_segment(e))
            break;
    if (dir)
        closedir(dir);
    return e != NULL;
}

static int add(struct runs *out, size_t *room, char **path)
{
    if (grow((void **)&out->paths, out->n, room, sizeof *out->paths, 16))
        return -ENOMEM;
    out->paths[out->n++] = steal_ptr(*path);
    return 0;
}

int runs_find(struct err *err, const char *folder, struct runs *out)
{
    DIR *dir = opendir(folder);
    size_t room = 0;
    int r = 0;
    *out = (struct runs){ 0 };
    if (!dir)
        return err_set_errno(err, errno, "cannot open %s", folder);
    for (const struct dirent *e; !r && (e = readdir(dir));) {
        _cleanup_(freep) char *path = NULL;
        struct stat st;
        if (e->d_name[0] == '.')
            continue;
        if (asprintf(&path, "%s/%s", folder, e->d_name) < 0) {
            path = NULL;
            r = -ENOMEM;
        } else if (!stat(path, &st) && S_ISDIR(st.st_mode) && is_run(path)) {
            r = add(out, &room, &path);
        }
    }
    closedir(dir);
    if (r) {
        runs_deinit(out);
        return err_set_errno(err, -r, "cannot list %s", folder);
    }
    if (out->n)
        qsort(out->paths, out->n, sizeof *out->paths, order_texts);
    return 0;
}

int runs_at(const char *path, struct runs *out)
{
    struct err ignored = { 0 };
    size_t room = 0;
    if (!runs_find(&ignored, path, out) && out->n)
        return 0;
    _cleanup_(freep) char *own = strdup(path);
    return own ? add(out, &room, &own) : -ENOMEM;
}

void runs_deinit(struct runs *runs)
{
    for (size_t i = 0; i < runs->n; i++)
        free(runs->paths[i]);
    free(runs->paths);
    *runs = (struct runs){ 0 };
}
