/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of tensors as they were captured: the last row of each, and all rows of those that are named. */
#include "tools/view/view.h"

#include "core/cleanup.h"
#include "core/err.h"
#include "storage/elements.h"
#include "tools/common/element.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define ELEMENTS 64 /* of a row, unless its tensor is named */
#define TENSOR_BYTES                                                                               \
    400 /* in the document, beside its rows, at most; and a row beside its elements */
#define ROW_BYTES 200

struct values {
    struct view_report *report;
    uint64_t room;       /* bytes of the document that rows may take */
    uint64_t n_left_out; /* rows of named tensors, and tensors */
    uint64_t n_tensors_left_out;
};

static bool is_named(const struct view_report *report, const struct dmi_read_tensor *t)
{
    const char *dot = t->layer >= 0 ? strrchr(t->name, '.') : NULL;
    size_t n = strlen(t->name), n_site = dot ? (size_t)(dot - t->name) : n;
    for (size_t i = 0; i < report->n_values; i++) {
        const struct dmi_read_name *v = &report->values[i];
        if ((v->bytes == n || v->bytes == n_site) && !memcmp(v->text, t->name, v->bytes))
            return true;
    }
    return false;
}

/* ------------------------------------------------------------------------- a row */

struct drawn_row {
    struct dmi_read_row row;
    uint64_t index, width, n; /* elements, and those that are shown */
    uint8_t *data;            /* owned */
    double scale;
};

static void shown_deinit(struct drawn_row *s)
{
    free(s->data);
}

static int read_row(struct dmi_read *run, uint64_t tensor, uint64_t index, struct drawn_row *s)
{
    struct dmi_read_site site = { .size = sizeof site };
    *s = (struct drawn_row){ .index = index, .width = 1 };
    int r = dmi_read_rows(run, tensor, index, 1, NULL, 0, &s->row, sizeof s->row);
    if (r || (r = dmi_read_site(run, s->row.site, &site)))
        return r;
    s->scale = site.scale == 0 ? 1 : site.scale;
    for (uint32_t i = 0; i < s->row.n_dims; i++)
        s->width *= s->row.dims[i];
    uint64_t n_bytes = s->width * dmi_dtype_bytes(s->row.dtype);
    s->data = calloc(1, n_bytes + 1);
    if (!s->data)
        return -ENOMEM;
    r = dmi_read_rows(run, tensor, index, 1, s->data, n_bytes, &s->row, sizeof s->row);
    return r == -EBADMSG ? 0 : r; /* the row says so */
}

/* Elements as they are stored, and as true values: for --json. */
static void add_numbers(struct document *d, const struct drawn_row *s)
{
    struct text *out = &d->out;
    uint32_t size = dmi_dtype_bytes(s->row.dtype);
    document_begin(d, "stored", '[');
    for (uint64_t i = 0; i < s->n; i++) {
        double v;
        elements_to_double(s->row.dtype, s->data + i * size, 1, &v);
        text_add(out, ",", i ? 1 : 0);
        element_add_json(out, s->row.dtype, s->data + i * size, v);
    }
    document_end(d, ']');
    document_begin(d, "true", '[');
    for (uint64_t i = 0; i < s->n; i++) {
        double v;
        elements_to_true(s->row.dtype, s->data + i * size, 1, s->scale, &v);
        text_add(out, ",", i ? 1 : 0);
        text_json_double(out, v);
    }
    document_end(d, ']');
}

static void row_add(struct document *d, const struct drawn_row *s)
{
    bool damaged = s->row.flags & DMI_READ_ROW_DAMAGED;
    const struct dmi_dtype_info *type = dmi_dtype_info(s->row.dtype);
    json_t *position = s->row.position < 0 ? json_null() : json_integer(s->row.position);
    json_t *step = s->row.step == UINT64_MAX ? json_null() : value_u64(s->row.step);
    document_begin(d, NULL, '{');
    document_add(d, "row", value_u64(s->index));
    document_add(d, "position", position);
    document_add(d, "step", step);
    document_add(d, "launch", value_u64(s->row.launch));
    document_add(d, "dtype", json_string(type ? type->name : "?"));
    document_add(d, "scale", value_double(s->scale));
    document_add(d, "width", value_u64(s->width));
    document_add(d, "damaged", json_boolean(damaged));
    if (s->row.flags & DMI_READ_ROW_EDITED)
        document_add(d, "edited", json_true());
    if (d->in_page)
        document_octets(d, "data", s->data, s->n * dmi_dtype_bytes(s->row.dtype));
    else
        add_numbers(d, s);
    document_end(d, '}');
}

/* ------------------------------------------------------------------------- a tensor */

/* Return: 0, also where there is no room for it, or -errno. */
static int add_row(struct values *v, uint64_t tensor, uint64_t index, bool whole)
{
    _cleanup_(shown_deinit) struct drawn_row s = { 0 };
    TRY(read_row(v->report->run, tensor, index, &s));
    s.n = whole || s.width < ELEMENTS ? s.width : ELEMENTS;
    uint64_t cost = ROW_BYTES + document_cost(s.n * dmi_dtype_bytes(s.row.dtype));
    if (cost > v->room) {
        v->n_left_out++;
        return 0;
    }
    v->room -= cost;
    row_add(&v->report->document, &s);
    return 0;
}

static int add_tensor(struct values *v, uint64_t index, const struct dmi_read_tensor *t)
{
    struct document *d = &v->report->document;
    if (v->room < TENSOR_BYTES) {
        v->n_tensors_left_out++;
        return 0;
    }
    v->room -= TENSOR_BYTES;
    bool named = is_named(v->report, t);
    json_t *shape = json_array();
    json_array_append_new(shape, value_u64(t->n_rows));
    for (uint32_t i = 0; i < t->n_dims; i++)
        json_array_append_new(shape, json_integer(t->dims[i]));
    document_begin(d, NULL, '{');
    document_add(d, "request", json_integer(view_request_of(v->report->run, t)));
    document_add(d, "id", view_id_of(t));
    document_add(d, "name", document_text(t->name));
    document_add(d, "shape", shape);
    document_begin(d, "rows", '[');
    int r = 0;
    for (uint64_t i = named || !t->n_rows ? 0 : t->n_rows - 1; !r && i < t->n_rows; i++)
        r = add_row(v, index, i, named);
    document_end(d, ']');
    document_end(d, '}');
    return r;
}

int view_values(struct err *err, struct view_report *report)
{
    struct dmi_read_tensor t = { .size = sizeof t };
    struct dmi_read_run run = { .size = sizeof run };
    struct values v = { .report = report, .room = view_room(report) / (report->n_values ? 2 : 4) };
    int r = dmi_read_run(report->run, &run);
    document_begin(&report->document, "values", '[');
    for (uint64_t i = 0; !r && i < run.n_tensors; i++) {
        r = dmi_read_tensor(report->run, i, &t);
        if (!r)
            r = add_tensor(&v, i, &t);
    }
    document_end(&report->document, ']');
    if (v.n_tensors_left_out)
        view_leave_out(report, "values of %" PRIu64 " of %" PRIu64 " tensors are left out",
                       v.n_tensors_left_out, run.n_tensors);
    if (v.n_left_out)
        view_leave_out(report, "%" PRIu64 " rows of values are left out", v.n_left_out);
    return r ? err_set_errno(err, -r, "cannot read the values") : 0;
}
