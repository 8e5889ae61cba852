/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/report.h"

#include "core/cleanup.h"
#include "read/utf8.h"
#include "tools/common/ticker.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------- lines */

void report_line(struct report *r, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    if (!r->json)
        say_formatted(stdout, "", fmt, ap);
    va_end(ap);
}

void report_drawn_line(struct report *r, const struct text *line)
{
    r->failed |= line->failed;
    if (r->json || line->failed)
        return;
    ticker_stop();
    fwrite(line->data, 1, line->n, stdout);
    fputc('\n', stdout);
}

/* ------------------------------------------------------------------------- JSON */

static void put_json(struct report *r, json_t *value)
{
    _cleanup_(text_deinit) struct text t = { 0 };
    value_add_new(&t, value);
    r->failed |= t.failed;
    if (!t.failed)
        fwrite(t.data, 1, t.n, stdout);
}

static void put_key(struct report *r, const char *key)
{
    fputs(r->is_object ? ",\n  " : "{\n  ", stdout);
    r->is_object = true;
    put_json(r, value_text(key));
    fputs(": ", stdout);
}

void report_member(struct report *r, const char *key, json_t *value)
{
    if (!r->json) {
        json_decref(value);
        return;
    }
    put_key(r, key);
    put_json(r, value);
}

/* ------------------------------------------------------------------------- tables */

static void add_plain(struct text *to, const json_t *v)
{
    if (json_is_string(v))
        text_add(to, json_string_value(v), json_string_length(v));
    else if (json_is_integer(v))
        text_printf(to, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
    else if (json_is_real(v))
        text_printf(to, "%g", json_real_value(v));
    else if (json_is_boolean(v))
        text_printf(to, "%s", json_is_true(v) ? "yes" : "no");
}

/* @raw, @cell: its memory, used again. */
static void add_cell(struct report *r, struct text *line, size_t column, const json_t *row,
                     struct text *raw, struct text *cell)
{
    const struct column *c = &r->columns[column];
    raw->n = cell->n = 0;
    if (!row)
        text_add(raw, c->title, strlen(c->title));
    else if (c->cell)
        c->cell(raw, row);
    else
        (c->value ? c->value : add_plain)(raw, json_object_get(row, c->key));
    utf8_add_printable(cell, raw->n ? raw->data : "", raw->n);
    bool to_left = c->width < 0, last = column + 1 == r->n_columns;
    size_t width = (size_t)abs(c->width), taken = utf8_columns(cell->n ? cell->data : "", cell->n);
    int fill = taken < width ? (int)(width - taken) : 0;
    if (column)
        text_add(line, " ", 1);
    for (int i = 0; i < fill && !to_left; i++)
        text_add(line, " ", 1);
    text_add(line, cell->n ? cell->data : "", cell->n);
    for (int i = 0; i < fill && to_left && !last; i++)
        text_add(line, " ", 1);
    r->failed |= raw->failed | cell->failed;
}

/* @row: NULL: the titles */
static void put_row(struct report *r, const json_t *row)
{
    _cleanup_(text_deinit) struct text line = { 0 }, raw = { 0 }, cell = { 0 };
    for (size_t i = 0; i < r->n_columns; i++)
        add_cell(r, &line, i, row, &raw, &cell);
    while (line.n && line.data[line.n - 1] == ' ')
        line.n--;
    r->failed |= line.failed;
    if (!line.failed)
        say_line(stdout, "", line.data ? line.data : "", line.n);
}

void report_table(struct report *r, const char *key, const struct column *columns, size_t n_columns)
{
    r->columns = columns;
    r->n_columns = n_columns;
    r->n_rows = 0;
    if (!r->json) {
        put_row(r, NULL);
        return;
    }
    if (key)
        put_key(r, key);
    fputs("[", stdout);
}

void report_row(struct report *r, json_t *row)
{
    if (!row) {
        r->failed = true;
    } else if (r->json) {
        fputs(r->n_rows ? ",\n    " : "\n    ", stdout);
        put_json(r, json_incref(row));
    } else {
        put_row(r, row);
    }
    r->n_rows++;
    json_decref(row);
}

void report_table_end(struct report *r)
{
    if (r->json)
        fputs(r->is_object ? "]" : "\n]", stdout);
}

int report_end(struct report *r, int status)
{
    if (r->json)
        fputs(r->is_object ? "\n}\n" : "\n", stdout);
    if (!r->failed)
        return status;
    complain("no memory");
    return REPORT_IMPOSSIBLE;
}
