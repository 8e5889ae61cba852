/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-dump export --format csv: a table of statistics, a line a tensor. Source: RFC 4180. */
#include "tools/dump/export.h"

#include "core/cleanup.h"
#include "core/whole.h"

#include <dmi/dtype.h>
#include <dmi/format.h>

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#define FLUSH 65536u /* bytes */

static int begin(struct err *err, struct exporter *x)
{
    (void)err;
    x->at = 0;
    return 0;
}

static int write_rows(struct exporter *x, const struct target *target, const void *data, size_t n,
                      uint64_t at)
{
    uint32_t dtype = target->tensor->dtype;
    (void)at;
    statistics_take(&x->targets[target - x->targets].sums, dtype, data, n / dmi_dtype_bytes(dtype));
    return 0;
}

/* ------------------------------------------------------------------------- lines */

/* A field in quotes; takes @value, a string or null. */
static void add_field(struct text *to, json_t *value)
{
    const char *s = json_string_value(value);
    to->failed |= !value;
    text_add(to, "\"", 1);
    for (; s && *s; s++)
        text_add(to, *s == '"' ? "\"\"" : s, *s == '"' ? 2 : 1);
    text_add(to, "\"", 1);
    json_decref(value);
}

/* Empty where there is none. */
static void add_number(struct text *to, bool known, double v)
{
    text_add(to, ",", 1);
    if (known)
        text_json_double(to, v);
}

static void add_line(struct text *to, const struct target *target)
{
    const struct tensor *t = target->tensor;
    const struct statistics *s = &target->sums;
    uint64_t n_not_finite = s->n_nan + s->n_infinite;
    add_field(to, t->request ? value_bytes(t->request, t->n_request) : json_null());
    text_add(to, ",", 1);
    add_field(to, value_text(t->site->name));
    text_add(to, ",", 1);
    if (t->layer != DMI_NO_LAYER)
        text_printf(to, "%" PRId32, t->layer);
    text_printf(to, ",%s,%" PRIu64 ",%" PRIu64 ",%" PRIu64, dmi_dtype_info(t->dtype)->name,
                t->n_rows, t->width, s->n + n_not_finite);
    add_number(to, s->n, s->sum / (double)s->n);
    add_number(to, true, sqrt(s->squares));
    add_number(to, s->n, s->least);
    add_number(to, s->n, s->most);
    text_printf(to, ",%" PRIu64 "\r\n", n_not_finite);
}

static int finish(struct err *err, struct exporter *x)
{
    _cleanup_(text_deinit) struct text out = { 0 };
    int r = 0;
    text_printf(&out, "request,site,layer,dtype,rows,width,n,mean,norm,min,max,non_finite\r\n");
    for (size_t i = 0; !r && i <= x->n_targets; i++) {
        if (i < x->n_targets)
            add_line(&out, &x->targets[i]);
        if (i < x->n_targets && out.n < FLUSH)
            continue;
        r = out.failed ? -ENOMEM : whole_write(x->fd, out.data, out.n, x->at);
        x->at += out.n;
        out.n = 0;
    }
    return r ? err_set_errno(err, -r, "cannot write %s", x->output) : 0;
}

const struct format format_csv = {
    .name = "csv",
    .what = "one file, a line of statistics a tensor",
    .suffix = ".csv",
    .begin = begin,
    .write = write_rows,
    .finish = finish,
};
