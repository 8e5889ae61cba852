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

json_t *mapped_json(struct err *err, const struct mapped *m, size_t most_mib, size_t flags)
{
    json_error_t why;
    if (m->n > most_mib << 20) {
        err_set(err, -EINVAL, "it has more than %zu MiB", most_mib);
        return NULL;
    }
    json_t *whole = json_loadb(m->data, m->n, flags, &why);
    if (!whole)
        err_set(err, -EINVAL, "line %d, column %d: %s", why.line, why.column, why.text);
    return whole;
}

void mapped_deinit(struct mapped *m)
{
    if (m->data)
        munmap((void *)(uintptr_t)m->data, m->n);
    free(m->path);
    *m = (struct mapped){ 0 };
}
