/* SPDX-License-Identifier: Apache-2.0 */
/* The C ABI of <dmi/analyze_vocabulary.h>. */
#include "analyze/vocabulary.h"
#include "core/err.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

struct opened {
    struct dmi_vocabulary shown; /* first: what callers have */
    struct vocabulary read;
};

int dmi_vocabulary_open(const char *path, struct dmi_vocabulary **out, char *why, uint64_t n_why)
{
    struct err err = { 0 };
    struct opened *v = calloc(1, sizeof *v);
    int r = v ? vocabulary_open(&err, path, &v->read)
              : err_set_errno(&err, ENOMEM, "cannot read %s", path);
    if (!r)
        v->shown = (struct dmi_vocabulary){ v->read.pieces, v->read.n, v->read.bytes.data };
    *out = r ? NULL : &v->shown;
    if (r && why && n_why)
        snprintf(why, n_why, "%s", err.msg);
    if (r && v)
        dmi_vocabulary_close(&v->shown);
    return r;
}

void dmi_vocabulary_close(struct dmi_vocabulary *vocabulary)
{
    struct opened *v = (struct opened *)vocabulary;
    if (v)
        vocabulary_deinit(&v->read);
    free(v);
}
