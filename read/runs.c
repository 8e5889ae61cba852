/* SPDX-License-Identifier: Apache-2.0 */
#include "read/runs.h"

#include "core/cleanup.h"
#include "storage/reader/reader.h"

#include <errno.h>
#include <string.h>

int runs_find(struct err *err, const char *folder, struct runs *out)
{
    *out = (struct runs){ 0 };
    return reader_list_runs(err, folder, &out->paths, &out->n);
}

int runs_at(const char *path, struct runs *out)
{
    struct err ignored = { 0 };
    if (!runs_find(&ignored, path, out) && out->n)
        return 0;
    runs_deinit(out);
    out->paths = calloc(1, sizeof *out->paths);
    if (!out->paths || !(out->paths[0] = strdup(path)))
        return -ENOMEM;
    out->n = 1;
    return 0;
}

void runs_deinit(struct runs *runs)
{
    reader_free_paths(runs->paths, runs->n);
    *runs = (struct runs){ 0 };
}
