/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/report.h"

#include "core/cleanup.h"
#include "read/utf8.h"
#include "tools/common/ticker.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define HELD   256 /* rows of a table by which its columns get their widths */
#define WIDEST 72  /* a longer cell shifts what comes after it */

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

/* A cell as it is printed. @row: NULL: the title; @raw: memory, used again. Return: columns of a terminal. */
static size_t make_cell(struct report *r, size_t column, const json_t *row, struct text *raw,
                        struct text *cell)
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
    r->failed |= raw->failed | cell->failed;
    return utf8_columns(cell->n ? cell->data : "", cell->n);
}

static void add_blanks(struct text *line, size_t n)
{
    while (n--)
        text_add(line, " ", 1);
}

/* @row: NULL: the titles */
static void put_row(struct report *r, const json_t *row)
{
    _cleanup_(text_deinit) struct text line = { 0 }, raw = { 0 }, cell = { 0 };
    for (size_t i = 0; i < r->n_columns; i++) {
        size_t taken = make_cell(r, i, row, &raw, &cell);
        size_t fill = taken < r->widths[i] ? r->widths[i] - taken : 0;
        bool to_left = r->columns[i].width < 0;
        add_blanks(&line, (i > 0) + (to_left ? 0 : fill));
        text_add(&line, cell.n ? cell.data : "", cell.n);
        add_blanks(&line, to_left ? fill : 0);
    }
    while (line.n && line.data[line.n - 1] == ' ')
        line.n--;
    r->failed |= line.failed;
    if (!line.failed)
        say_line(stdout, "", line.data ? line.data : "", line.n);
}

static void widen(struct report *r, const json_t *row)
{
    _cleanup_(text_deinit) struct text raw = { 0 }, cell = { 0 };
    for (size_t i = 0; i < r->n_columns; i++) {
        size_t taken = make_cell(r, i, row, &raw, &cell);
        taken = taken < WIDEST ? taken : WIDEST;
        r->widths[i] = taken > r->widths[i] ? taken : r->widths[i];
    }
}

/* The titles, and the rows that were held. */
static void put_held(struct report *r)
{
    size_t i;
    json_t *row;
    json_array_foreach(r->held, i, row) widen(r, row);
    put_row(r, NULL);
    json_array_foreach(r->held, i, row) put_row(r, row);
    json_decref(r->held);
    r->held = NULL;
}

void report_table(struct report *r, const char *key, const struct column *columns, size_t n_columns)
{
    r->columns = columns;
    r->n_columns = n_columns;
    r->n_rows = 0;
    if (!r->json) {
        for (size_t i = 0; i < n_columns; i++)
            r->widths[i] = (size_t)abs(columns[i].width);
        r->held = json_array();
        r->failed |= !r->held;
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
    } else if (r->held) {
        r->failed |= json_array_append(r->held, row) != 0;
        if (json_array_size(r->held) == HELD)
            put_held(r);
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
    else if (r->held)
        put_held(r);
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
