/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/ctl/edits.h"

#include "core/cleanup.h"
#include "policy/edit.h"
#include "tools/common/vectors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int write_all(int fd, const char *data, size_t n)
{
    while (n) {
        ssize_t done = write(fd, data, n);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return -1;
        data += done;
        n -= (size_t)done;
    }
    return 0;
}

static int seal(struct err *err, const void *data, size_t n)
{
    _cleanup_(closep) int fd = memfd_create("dmi-edits", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || write_all(fd, data, n) ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL))
        return err_set_errno(err, errno, "the edits cannot be put into memory");
    return steal_fd(&fd);
}

/* The HookSpec as the run has it; its variables do not matter here. */
static struct spec *spec_of(struct err *err, const char *run)
{
    struct spec_errors errors = { 0 };
    struct spec *spec = NULL;
    _cleanup_(freep) char *path = NULL;
    if (asprintf(&path, "%s/spec.yaml", run) < 0 || spec_load(path, NULL, 0, &errors, &spec))
        err_set(err, -EINVAL, "its spec.yaml cannot be read");
    spec_errors_deinit(&errors);
    return spec;
}

int edits_memory(struct err *err, const char *run, const char *path)
{
    struct spec *spec = spec_of(err, run);
    if (!spec)
        return err->code;
    struct edits *edits = vectors_edits(path, spec, NULL);
    spec_free(spec);
    void *data = NULL;
    size_t n;
    int r = !edits ? err_set(err, -EINVAL, "not asked: the edits have errors")
            : edits_pack(edits, &data, &n) ? err_set(err, -ENOMEM, "no memory")
                                           : seal(err, data, n);
    free(data);
    edits_free(edits);
    return r;
}
