/* SPDX-License-Identifier: Apache-2.0 */
#include "analyze/mapped.h"

#include "core/cleanup.h"

#include <errno.h>
#include <fcntl.h>
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
    struct stat about;
    *out = (struct mapped){ .path = file_of(path, in_folder) };
    if (!out->path)
        return err_set(err, -ENOMEM, "no memory for a path");
    _cleanup_(closep) int fd = open(out->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &about))
        return err_set_errno(err, errno, "cannot read %s", out->path);
    if (!S_ISREG(about.st_mode) || !about.st_size)
        return err_set(err, -EINVAL, "%s is no file, or an empty one", out->path);
    void *map = mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (map == MAP_FAILED)
        return err_set_errno(err, errno, "cannot read %s", out->path);
    out->data = map;
    out->n = (size_t)about.st_size;
    return 0;
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
