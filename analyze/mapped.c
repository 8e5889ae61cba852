/* SPDX-License-Identifier: Apache-2.0 */
#include "analyze/mapped.h"

#include "core/regular.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

static char *file_of(const char *path, const char *in_folder)
{
    struct stat about;
    char *file = NULL;
    if (!stat(path, &about) && S_ISDIR(about.st_mode))
        return asprintf(&file, "%s/%s", path, in_folder) < 0 ? NULL : file;
    return strdup(path);
}

int mapped_open(struct err *err, const char *path, const char *in_folder, struct mapped *out)
{
    *out = (struct mapped){ .path = file_of(path, in_folder) };
    if (!out->path)
        return err_set(err, -ENOMEM, "no memory for a path");
    out->data = regular_map(err, out->path, &out->n);
    return out->data ? 0 : err->code;
}

void mapped_deinit(struct mapped *m)
{
    if (m->data)
        munmap((void *)(uintptr_t)m->data, m->n);
    free(m->path);
    *m = (struct mapped){ 0 };
}
