/* SPDX-License-Identifier: Apache-2.0 */
#include "read/edit_packs.h"

#include "core/cleanup.h"
#include "core/grow.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_MISSING 64 /* numbers without a file, after which there is none */

/* A file of the run, of the first of joined ones, beside a lone segment. Return: NULL: no memory. */
static char *path_of(const struct reader_run *run, const char *name)
{
    const char *at = run->ranks ? run->ranks[0].path : run->path, *slash = strrchr(at, '/');
    char *path = NULL;
    struct stat st;
    if (!stat(at, &st) && S_ISDIR(st.st_mode))
        slash = at + strlen(at);
    int n = slash ? asprintf(&path, "%.*s/%s", (int)(slash - at), at, name)
                  : asprintf(&path, "%s", name);
    return n < 0 ? NULL : path;
}

int edit_packs_load(const struct reader_run *run, const char *name, void **data, size_t *n)
{
    struct stat st;
    char *path = path_of(run, name);
    if (!path)
        return -ENOMEM;
    _cleanup_(closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    int r = fd < 0 || fstat(fd, &st) ? -errno : S_ISREG(st.st_mode) ? 0 : -EINVAL;
    free(path);
    if (r)
        return r;
    char *all = malloc((size_t)st.st_size + 1);
    ssize_t got = 0;
    for (*n = 0; all && *n < (size_t)st.st_size && got >= 0; *n += got > 0 ? (size_t)got : 0) {
        got = pread(fd, all + *n, (size_t)st.st_size - *n, (off_t)*n);
        if (!got)
            break;
        got = got < 0 && errno == EINTR ? 0 : got;
    }
    *data = all;
    return !all ? -ENOMEM : got < 0 ? -errno : 0;
}

struct spec *edit_packs_spec(struct err *err, const struct reader_run *run)
{
    struct spec_errors errors = { 0 };
    struct spec *spec = NULL;
    _cleanup_(freep) char *path = path_of(run, "spec.yaml");
    if (!path || spec_load(path, NULL, 0, &errors, &spec))
        err_set(err, -EINVAL, "%s cannot be read%s%s", path ? path : run->path,
                errors.n_lines ? ": " : "", errors.n_lines ? errors.lines[0] : "");
    spec_errors_deinit(&errors);
    return spec;
}

int edit_packs_open(struct err *err, const struct reader_run *run, struct edit_packs *out)
{
    *out = (struct edit_packs){ .run = run, .spec = edit_packs_spec(err, run) };
    return out->spec ? 0 : err->code;
}

void edit_packs_close(struct edit_packs *packs)
{
    for (size_t i = 0; i < packs->n; i++)
        edits_free(packs->read[i]);
    free(packs->read);
    spec_free(packs->spec);
    *packs = (struct edit_packs){ 0 };
}

static bool has_hash(const struct edits *edits, const char *hash)
{
    char is[17];
    snprintf(is, sizeof is, "%016" PRIx64, edits->hash);
    return !strcmp(is, hash);
}

/* The edits of pack @number; NULL: there is no such file, or it cannot be read. */
static struct edits *unpack(const struct edit_packs *packs, unsigned number)
{
    struct spec_errors errors = { 0 };
    struct edits *edits = NULL;
    char name[32];
    size_t n = 0;
    void *data = NULL;
    snprintf(name, sizeof name, "edits-%06u.pack", number);
    if (!edit_packs_load(packs->run, name, &data, &n))
        edits_unpack(name, data, n, packs->spec, &errors, &edits);
    free(data);
    spec_errors_deinit(&errors);
    return edits;
}

const struct edits *edit_packs_find(struct err *err, struct edit_packs *packs, const char *hash)
{
    for (size_t i = 0; i < packs->n; i++)
        if (has_hash(packs->read[i], hash))
            return packs->read[i];
    for (unsigned number = 0, missing = 0; missing < MOST_MISSING; number++) {
        struct edits *edits = unpack(packs, number);
        missing = edits ? 0 : missing + 1;
        if (!edits || !has_hash(edits, hash)) {
            edits_free(edits);
            continue;
        }
        if (!GROW(packs->read, packs->n, packs->room))
            return packs->read[packs->n++] = edits;
        edits_free(edits);
        err_set(err, -ENOMEM, "no memory");
        return NULL;
    }
    err_set(err, -ENOENT, "%s: no file edits-N.pack that can be read has the edits with hash %s",
            packs->run->path, hash);
    return NULL;
}
