/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-dump show: values of a site. */
#include "tools/dump/dump.h"

#include "core/cleanup.h"
#include "core/err.h"
#include "storage/elements.h"
#include "read/edited.h"
#include "read/record.h"
#include "tools/common/select.h"
#include "tools/dump/export.h"
#include "tools/dump/missing.h"
#include "tools/dump/show_map.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define VALUES_A_LINE 8
#define ROWS          4  /* of a tensor, unless --rows says otherwise */
#define MAP_ROWS      64 /* likewise, of a map */

struct show_page {
    struct requests requests;
    struct edited_all edited;
    struct report report;
    struct reader *reader;
    struct dump_options options;
    bool by_rows;       /* the user said which */
    struct ranges rows; /* of the tensor at hand */
    uint64_t n_rows, n_matching, n_failed;
    uint64_t n_more; /* rows of a map that are not shown, at most of one tensor */
    struct heat_map map;
};

/* One row, its values divided by the site's scale. */
struct shown_row {
    const struct tensor *tensor;
    const struct reader_record *record;
    uint64_t index;      /* among those that the options select */
    int64_t position;    /* -1: not known */
    uint32_t flags;      /* enum stretch_flags */
    const json_t *edits; /* names of those that wrote it; NULL: none did */
    const double *values;
    uint64_t width;
};

static const char *flag_word(uint32_t flags)
{
    return flags & STRETCH_REJECTED ? "rejected" : "superseded";
}

static json_t *row_value(const struct shown_row *row)
{
    json_t *values = json_array();
    for (uint64_t i = 0; i < row->width; i++)
        json_array_append_new(values, value_double(row->values[i]));
    json_t *o = json_pack("{s:o, s:o, s:o}", "tensor", value_text(row->tensor->key), "row",
                          value_u64(row->index), "forward", value_u64(row->record->at.forward));
    if (row->record->step)
        json_object_set_new(o, "step", value_u64(row->record->step->entry->step));
    if (row->position >= 0)
        json_object_set_new(o, "position", json_integer(row->position));
    if (row->flags)
        json_object_set_new(o, flag_word(row->flags), json_true());
    if (row->edits)
        json_object_set(o, "edited_by", (json_t *)(uintptr_t)row->edits);
    json_object_set_new(o, "launch", value_u64(row->record->at.launch));
    json_object_set_new(o, "values", values);
    return o;
}

static void row_title(struct report *report, const struct shown_row *row)
{
    double norm = 0, least = INFINITY, most = -INFINITY;
    uint64_t n_nan = 0;
    for (uint64_t i = 0; i < row->width; i++) {
        double v = row->values[i];
        norm += v * v;
        n_nan += isnan(v);
        least = v < least ? v : least;
        most = v > most ? v : most;
    }
    _cleanup_(text_deinit) struct text t = { 0 };
    text_printf(&t, "%s  row %" PRIu64 ", forward %" PRIu64, row->tensor->key, row->index,
                row->record->at.forward);
    if (row->record->step)
        text_printf(&t, ", step %" PRIu64, row->record->step->entry->step);
    if (row->position >= 0)
        text_printf(&t, ", position %" PRId64, row->position);
    if (row->flags)
        text_printf(&t, ", %s", flag_word(row->flags));
    for (size_t i = 0; i < json_array_size(row->edits); i++)
        text_printf(&t, "%s%s", i ? ", " : ", edited by ",
                    json_string_value(json_array_get(row->edits, i)));
    text_printf(&t, "; norm %.6g, least %.6g, most %.6g", sqrt(norm), least, most);
    if (n_nan)
        text_printf(&t, ", %" PRIu64 " NaN", n_nan);
    report_line(report, "%s", t.failed ? "" : t.data);
    report->failed |= t.failed;
}

static void row_values(struct report *report, const struct shown_row *row, bool all)
{
    _cleanup_(text_deinit) struct text t = { 0 };
    text_printf(&t, "   ");
    for (uint64_t i = 0; i < row->width; i++) {
        if (!all && row->width > 10 && i == 6) {
            text_printf(&t, " ... (%" PRIu64 " more, --all)", row->width - 8);
            i = row->width - 2;
        }
        if (all && i && i % VALUES_A_LINE == 0) {
            report_line(report, "%s", t.failed ? "" : t.data);
            t.n = 0;
            text_printf(&t, "   ");
        }
        text_printf(&t, " %12.6g", row->values[i]);
    }
    report_line(report, "%s", t.failed ? "" : t.data);
    report->failed |= t.failed;
}

/* Return: 0 or -ENOMEM. */
static int show_row(struct show_page *s, const struct shown_row *row)
{
    s->n_rows++;
    if (s->options.map && row->flags)
        return 0; /* it would share a line with what counts at its position */
    if (s->options.map)
        return map_add(&s->map, row->tensor, row->position, row->index, row->values, row->width);
    if (s->report.json) {
        report_row(&s->report, row_value(row));
        return 0;
    }
    row_title(&s->report, row);
    row_values(&s->report, row, s->options.all_values);
    return 0;
}

/* What of @range lies within the @n rows from index @first on. A stretch may say that it has billions. */
static struct range within(const struct range *range, uint64_t first, uint64_t n)
{
    int64_t begin = (int64_t)first, end = (int64_t)(first + n);
    return (struct range){ range->first > begin ? range->first : begin,
                           range->end < end ? range->end : end };
}

/* The rows of a stretch that --rows asks for; @first: index of its first. */
static int show_rows(struct show_page *s, const struct tensor *t, const struct stretch *p,
                     uint64_t first)
{
    const struct reader_record *rec = reader_record(s->reader, p->record);
    uint64_t width = record_width(rec);
    _cleanup_(freep) uint8_t *raw = malloc(rec->at.n_bytes + 1);
    _cleanup_(freep) double *values = calloc(width + 1, sizeof *values);
    if (!raw || !values)
        return -ENOMEM;
    struct err err = { 0 };
    if (reader_decode(&err, s->reader, rec, raw)) {
        complain_undecoded(&err);
        s->n_failed++;
        return 0;
    }
    double scale = reader_site(s->reader, rec->at.site)->scale;
    size_t n_row = width * dmi_dtype_bytes(rec->at.dtype);
    for (size_t k = 0; k < s->rows.n; k++) {
        struct range r = within(&s->rows.all[k], first, p->n_rows);
        for (int64_t at = r.first; at < r.end; at++) {
            uint64_t i = (uint64_t)at - first;
            elements_to_true(rec->at.dtype, raw + (p->first_row + i) * n_row, width, scale, values);
            int64_t position = p->position < 0 ? -1 : p->position + (int64_t)i;
            json_t *edits = edited_names(&s->edited, t, rec->at.site, position);
            int shown = show_row(s, &(struct shown_row){ t, rec, first + i, position, p->flags,
                                                         edits, values, width });
            json_decref(edits);
            if (shown)
                return shown;
        }
    }
    return 0;
}

static bool piece_wanted(const struct show_page *s, const struct reader_record *rec)
{
    const struct dump_options *o = &s->options;
    uint64_t step = rec->step ? rec->step->entry->step : rec->at.forward;
    return slices_have(&o->steps, (int64_t)step) &&
           slices_have(&o->forwards, (int64_t)rec->at.forward);
}

static void show_more(struct show_page *s)
{
    if (s->n_more)
        report_line(&s->report, "  ... %" PRIu64 " more rows (--rows A:B)", s->n_more);
    s->n_more = 0;
}

/* Rows of the tensor that --step and --forward leave. */
static uint64_t rows_of(const struct show_page *s, const struct tensor *t)
{
    uint64_t n = 0;
    for (size_t i = 0; i < t->n_stretches; i++)
        if (piece_wanted(s, reader_record(s->reader, t->stretches[i].record)))
            n += t->stretches[i].n_rows;
    return n;
}

/* Does a stretch hold rows that --rows asks for? @first: index of its first. */
static bool has_rows(const struct show_page *s, uint64_t first, uint64_t n)
{
    for (size_t i = 0; i < s->rows.n; i++) {
        struct range r = within(&s->rows.all[i], first, n);
        if (r.first < r.end)
            return true;
    }
    return false;
}

static int show_tensor(struct show_page *s, const struct tensor *t)
{
    uint64_t index = 0, before = s->n_rows;
    s->rows = slices_of(&s->options.rows, (int64_t)rows_of(s, t));
    for (size_t i = 0; i < t->n_stretches; i++) {
        const struct stretch *p = &t->stretches[i];
        if (!piece_wanted(s, reader_record(s->reader, p->record)))
            continue;
        uint64_t first = index;
        index += p->n_rows;
        s->n_matching += p->n_rows;
        if (has_rows(s, first, p->n_rows)) {
            TRY(show_rows(s, t, p, first));
        }
    }
    uint64_t n_more = s->by_rows ? 0 : index - (s->n_rows - before);
    s->n_more = n_more > s->n_more ? n_more : s->n_more;
    if (!s->options.map)
        show_more(s);
    return 0;
}

/* A map of the tensors of one request and one site. */
static int show_map(struct show_page *s, const struct tensor *all, size_t n,
                    const struct map_style *style)
{
    int r = 0;
    map_begin(&s->map, all, n, style);
    for (size_t i = 0; !r && i < n; i++)
        r = show_tensor(s, &all[i]);
    if (!r)
        map_print(&s->report, &s->map, style);
    map_deinit_rows(&s->map);
    show_more(s);
    return r;
}

/* How many tensors from @first on are of its request and site. */
static size_t group_at(const struct tensors *ts, size_t first)
{
    size_t n = 1;
    while (first + n < ts->n && ts->all[first].order == ts->all[first + n].order &&
           export_same_request(&ts->all[first], &ts->all[first + n]))
        n++;
    return n;
}

static int show_all(struct show_page *s, const struct tensors *ts)
{
    const struct map_style style = map_style_of_stdout();
    int r = 0;
    for (size_t i = 0, n; !r && i < ts->n; i += n) {
        n = s->options.map ? group_at(ts, i) : 1;
        r = s->options.map ? show_map(s, &ts->all[i], n, &style) : show_tensor(s, &ts->all[i]);
    }
    return r;
}

int dump_show(struct reader *reader, const struct dump_options *given)
{
    struct show_page s = { .report = { .json = given->json },
                           .reader = reader,
                           .options = *given,
                           .by_rows = given->rows.n > 0 };
    if (!s.by_rows)
        s.options.rows = (struct slices){ .all = { { 0, given->map ? MAP_ROWS : ROWS } }, .n = 1 };
    struct err err = { 0 };
    _cleanup_(sites_deinit) struct sites sites = { 0 };
    _cleanup_(tensors_deinit) struct tensors ts = { 0 };
    const struct tensors_query query = { .select = &s.options.select };
    if (sites_build(reader, &sites))
        return no_memory();
    if (tensors_build(&err, reader, &sites, &query, &ts)) {
        complain("%s", err.msg);
        return DUMP_USAGE;
    }
    if (s.report.json)
        report_table(&s.report, NULL, NULL, 0);
    bool no_room = requests_build(reader, &s.requests) ||
                   edited_build(reader, &s.requests, &s.edited) || show_all(&s, &ts);
    bool unjudged = !no_room && ts.n && select_tell_unjudged(&s.requests, &s.options.select);
    edited_deinit(&s.edited);
    requests_deinit(&s.requests);
    if (no_room)
        return no_memory();
    report_table_end(&s.report);
    if (!ts.n)
        missing_complain(reader, &sites, &s.options.select);
    else if (!s.n_rows)
        complain("no row fits --step, --forward and --rows (%" PRIu64 " rows before --rows)",
                 s.n_matching);
    struct report quiet = { 0 };
    bool damaged = facts_findings(&quiet, reader) || s.n_failed;
    return report_end(&s.report, damaged || unjudged || !s.n_rows ? DUMP_FAILED : DUMP_OK);
}
