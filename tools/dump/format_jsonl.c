/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dmi-dump export --format jsonl: an object a row and line, in the order of the records. Source: RFC 8259, one value a
 * line.
 */
#include "tools/dump/export.h"

#include "core/cleanup.h"
#include "core/whole.h"
#include "read/record.h"
#include "storage/elements.h"
#include "tools/common/element.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define AT_A_TIME 512u   /* elements */
#define FLUSH     65536u /* bytes */

static int begin(struct err *err, struct exporter *x)
{
    (void)err;
    x->at = 0;
    return 0;
}

/* Writes what is collected. */
static int flush(struct exporter *x, struct text *t)
{
    int r = t->failed ? -ENOMEM : whole_write(x->fd, t->data, t->n, x->at);
    x->at += t->n;
    t->n = 0;
    return r;
}

/* All of a row that comes before its values. */
static void add_head(struct text *to, const struct exporter *x, const struct tensor *t, uint64_t i)
{
    text_printf(to, "{\"request\": ");
    value_add_new(to, t->request ? value_bytes(t->request, t->n_request) : json_null());
    if (x->stretch->position < 0)
        text_printf(to, ", \"position\": null, \"site\": ");
    else
        text_printf(to,
                    ", \"position\": %" PRIu64 ", \"site\": ", (uint64_t)x->stretch->position + i);
    value_add_new(to, value_text(t->site->name));
    text_printf(to, ", \"layer\": ");
    value_add_new(to, value_layer(t->layer));
    if (x->stretch->flags & STRETCH_REJECTED)
        text_printf(to, ", \"rejected\": true");
    if (x->stretch->flags & STRETCH_SUPERSEDED)
        text_printf(to, ", \"superseded\": true");
    if (x->stretch->donor != STRETCH_OWN) {
        text_printf(to, ", \"donor\": ");
        value_add_new(to, export_donor(x, x->stretch));
    }
    text_printf(to, ", \"values\": [");
}

/* A wide row goes out in parts. */
static int add_values(struct exporter *x, struct text *to, const uint8_t *row)
{
    double v[AT_A_TIME];
    uint32_t dtype = x->record->at.dtype, n_element = dmi_dtype_bytes(dtype);
    uint64_t width = record_width(x->record);
    int r = 0;
    for (uint64_t i = 0, n; !r && i < width; i += n) {
        n = width - i < AT_A_TIME ? width - i : AT_A_TIME;
        elements_to_double(dtype, row + i * n_element, n, v);
        for (uint64_t k = 0; k < n; k++) {
            text_printf(to, i + k ? ", " : "");
            element_add_json(to, dtype, row + (i + k) * n_element, v[k]);
        }
        r = to->n > FLUSH || to->failed ? flush(x, to) : 0;
    }
    text_printf(to, "]}\n");
    return r;
}

static int write_rows(struct exporter *x, const struct target *target, const void *data, size_t n,
                      uint64_t at)
{
    const struct tensor *t = target->tensor;
    uint64_t n_row = record_width(x->record) * dmi_dtype_bytes(x->record->at.dtype);
    _cleanup_(text_deinit) struct text out = { 0 };
    int r = 0;
    (void)at;
    for (uint64_t i = 0; !r && i < n / n_row; i++) {
        add_head(&out, x, t, i);
        r = add_values(x, &out, (const uint8_t *)data + i * n_row);
    }
    return r ? r : flush(x, &out);
}

const struct format format_jsonl = {
    .name = "jsonl",
    .what = "one file, a line a row: request, position, site, layer, values",
    .suffix = ".jsonl",
    .rows_alone = true,
    .begin = begin,
    .write = write_rows,
};
