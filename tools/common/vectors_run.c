/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/vectors_run.h"

#include "core/cleanup.h"
#include "policy/spec.h"
#include "storage/elements.h"
#include "tools/common/opened.h"

#include <dmi/read.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void run_closep(struct dmi_read **run)
{
    dmi_read_close(*run);
}

static int refuse(struct err *err, struct dmi_read *run)
{
    return err_set(err, -EINVAL, "%s", dmi_read_error(run));
}

/* The donor's positions, in the words of selections. */
static void add_positions(const struct edit_vector *v, char *to, size_t size)
{
    int64_t end = v->first + v->n_rows;
    if (v->first >= 0)
        snprintf(to, size, "%" PRId64 ":%" PRId64, v->first, end);
    else if (end)
        snprintf(to, size, "prompt[%" PRId64 ":%" PRId64 "]", v->first, end);
    else
        snprintf(to, size, "prompt[%" PRId64 ":]", v->first);
}

static int select_rows_of(struct err *err, struct dmi_read *run, const struct edit_vector *v)
{
    char positions[64];
    const struct dmi_read_name site = { v->site, strlen(v->site) };
    add_positions(v, positions, sizeof positions);
    const struct dmi_read_selection s = { .size = sizeof s,
                                          .request = v->request,
                                          .request_bytes = strlen(v->request),
                                          .sites = &site,
                                          .n_sites = 1,
                                          .positions = positions };
    return dmi_read_select(run, &s) ? refuse(err, run) : 0;
}

/* Why the tensor is no source, NULL: it is one. */
static const char *objection(const struct dmi_read_tensor *t, const struct edit_vector *v)
{
    if (!t->request)
        return "its rows belong to no request: the engine said no steps";
    if (t->mixed)
        return "its type or scale changes from record to record";
    if (!spec_edits_dtype(t->dtype))
        return "its numbers are of another type than f32, f16 and bf16";
    if (t->n_rows != v->n_rows)
        return "not all of the positions were captured";
    return NULL;
}

static int take_tensor(struct err *err, struct dmi_read *run, uint64_t index,
                       const struct edit_vector *v, vectors_take_layer *take, void *arg)
{
    struct dmi_read_tensor t = { .size = sizeof t };
    struct dmi_read_site site = { .size = sizeof site };
    if (dmi_read_tensor(run, index, &t) || dmi_read_site(run, t.site, &site))
        return refuse(err, run);
    const char *why = objection(&t, v);
    if (why)
        return err_set(err, -EINVAL, "%s: %s", t.key, why);
    uint64_t n = t.n_rows * t.width, n_bytes = t.n_rows * t.row_bytes;
    _cleanup_(freep) uint8_t *raw = malloc(n_bytes + 1);
    _cleanup_(freep) float *numbers = calloc(n + 1, sizeof *numbers);
    _cleanup_(freep) double *values = calloc(n + 1, sizeof *values);
    if (!raw || !numbers || !values)
        return -ENOMEM;
    if (dmi_read_rows(run, index, 0, t.n_rows, raw, n_bytes, NULL, 0))
        return refuse(err, run);
    elements_to_true(t.dtype, raw, n, site.scale, values);
    for (uint64_t i = 0; i < n; i++)
        numbers[i] = (float)values[i];
    return take(arg, t.layer < 0 ? EDIT_ANY_LAYER : t.layer, numbers, n);
}

int vectors_read_run(struct err *err, const char *path, const struct edit_vector *v,
                     vectors_take_layer *take, void *arg)
{
    char why[256];
    _cleanup_(run_closep) struct dmi_read *run = NULL;
    if (opened_run(path, &run, why, sizeof why))
        return err_set(err, -EINVAL, "%s", why);
    int r = select_rows_of(err, run, v);
    struct dmi_read_run about = { .size = sizeof about };
    if (!r && dmi_read_run(run, &about))
        r = refuse(err, run);
    if (!r && !about.n_tensors)
        r = err_set(err, -EINVAL, "it has no row of the site \"%s\" at these positions of \"%s\"",
                    v->site, v->request);
    for (uint64_t i = 0; i < about.n_tensors && !r; i++)
        r = take_tensor(err, run, i, v, take, arg);
    return r;
}
