/* SPDX-License-Identifier: Apache-2.0 */
/* Vectors whose widths no launch can suit, where the HookSpec says how wide rows are. Where a launch says it, only then it is known. */
#include "policy/edit.h"
#include "policy/expr.h"
#include "policy/report.h"

#include <string.h>

/* How wide rows of a site are, and heads of them. */
struct row_width {
    uint64_t n, head;
};

/* Return: false where it depends on the launch, on the tap, or on how many ranks divide it. */
static bool constant_row(const struct spec_site *site, struct row_width *row)
{
    uint32_t n_dims = 0;
    uint64_t n_heads = 1;
    row->n = 1;
    for (uint32_t i = 0; i < site->n_dims; i++) {
        const struct spec_dim *dim = &site->dims[i];
        if (dim->is_row)
            continue;
        if (!expr_is_constant(dim->count) || expr_constant(dim->count) <= 0 ||
            __builtin_mul_overflow(row->n, (uint64_t)expr_constant(dim->count), &row->n))
            return false;
        if (!n_dims++)
            n_heads = row->n;
    }
    row->head = n_dims > 1 ? row->n / n_heads : row->n;
    return n_dims > 0 && site->about.shard != DMI_SHARD_DIM;
}

static bool suits(const struct edit *edit, const struct row_width *row, uint64_t width)
{
    bool columns = edit->n_columns && !edit->of_heads;
    return width == row->n || width == (columns ? edit->n_columns : row->head);
}

/* Do its numbers suit no site of the edit's name? @row: the last of them. */
static bool suits_none(const struct edits *edits, const struct edit *edit, uint32_t vector,
                       const struct spec *spec, const struct edit_numbers *t, struct row_width *row)
{
    uint64_t width = t->n / edit_vector_rows(&edits->vectors[vector]);
    bool any = false;
    for (uint32_t i = 0; i < spec->n_sites; i++) {
        const struct spec_site *site = &spec->sites[i];
        if (site->action != SPEC_EDIT || !site->about.name || strcmp(site->about.name, edit->site))
            continue;
        if (!constant_row(site, row) || suits(edit, row, width))
            return false;
        any = true;
    }
    return any;
}

static void report_width(struct text_report *report, const struct edits *edits,
                         const struct edit *edit, uint32_t vector, const struct spec *spec)
{
    struct row_width row;
    for (uint32_t i = 0; i < edits->n_tensors && vector != EDIT_NO_VECTOR; i++) {
        const struct edit_numbers *t = &edits->tensors[i];
        const struct edit_vector *v = &edits->vectors[vector];
        if (t->vector != vector || !suits_none(edits, edit, vector, spec, t, &row))
            continue;
        report_add(report, edit->line, 1,
                   "found %" PRIu64 " numbers in the vector \"%s\" (%s) of the edit \"%s\"; "
                   "expected %" PRIu64 ", as %s has in a row, or as many as its heads or the named "
                   "columns",
                   t->n / edit_vector_rows(v), v->name, v->file ? v->file : v->run, edit->name,
                   row.n, edit->site);
        return;
    }
}

int edits_check_widths(const struct edits *edits, const struct spec *spec,
                       struct spec_errors *errors)
{
    struct text_report report = { .path = edits->path };
    *errors = (struct spec_errors){ 0 };
    for (uint32_t i = 0; i < edits->n; i++)
        for (uint32_t k = 0; k < edits->list[i].n_ops; k++) {
            const struct edit *edit = &edits->list[i];
            report_width(&report, edits, edit, edit->ops[k].vector, spec);
            report_width(&report, edits, edit, edit->ops[k].encoder, spec);
        }
    int r = report_finish(&report, &errors->lines, &errors->n_lines);
    return r ? r : errors->n_lines ? SPEC_E_INVALID : 0;
}
