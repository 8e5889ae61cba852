/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/ctl/edits.h"

#include "core/cleanup.h"
#include "policy/edit.h"
#include "tools/common/sealed.h"
#include "tools/common/vectors.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

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
                                           : sealed_memory(err, "dmi-edits", data, n);
    free(data);
    edits_free(edits);
    return r;
}
