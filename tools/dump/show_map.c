/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/dump/show_map.h"

#include "core/cleanup.h"
#include "core/grow.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define LABEL        10u /* characters before a row's cells */
#define PIPE_COLUMNS 64u
#define MOST_COLUMNS 160u

/* ------------------------------------------------------------------------- style */

/* Dark to light: xterm's 256 colours. */
static const uint8_t ramp[] = {
    17, 18, 19, 20, 26, 32, 38, 44, 43, 78, 113, 149, 185, 221, 227, 230
};
static const char shades[] = ".:-=+*#%@";

static size_t n_levels(const struct map_style *style)
{
    return style->colour ? sizeof ramp : sizeof shades - 1;
}

struct map_style map_style_of_stdout(void)
{
    const char *term = getenv("TERM"), *no_colour = getenv("NO_COLOR");
    struct map_style style = { .n_columns = PIPE_COLUMNS };
    struct winsize size = { 0 };
    if (!isatty(STDOUT_FILENO))
        return style;
    style.colour = term && strcmp(term, "dumb") != 0 && !(no_colour && *no_colour);
    if (!ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) && size.ws_col > 2 * LABEL)
        style.n_columns = size.ws_col - LABEL < MOST_COLUMNS ? size.ws_col - LABEL : MOST_COLUMNS;
    return style;
}

/* ------------------------------------------------------------------------- cells */

void map_begin(struct heat_map *map, const struct tensor *tensors, size_t n,
               const struct map_style *style)
{
    uint64_t n_units = n > 1 ? n : tensors->width;
    *map = (struct heat_map){ .tensors = tensors,
                              .n_tensors = n,
                              .n_columns =
                                  n_units < style->n_columns ? (size_t)n_units : style->n_columns };
}

/* The row of a key; rows come in order, of one tensor after the other. NULL: no memory. */
static struct map_row *find_row(struct heat_map *map, int64_t key)
{
    for (size_t i = 0; i < map->n_rows; i++) {
        size_t at = (map->last + i) % map->n_rows;
        if (map->rows[at].key == key) {
            map->last = at;
            return &map->rows[at];
        }
    }
    struct map_cell *cells = calloc(map->n_columns + 1, sizeof *cells);
    if (!cells || grow((void **)&map->rows, map->n_rows, &map->room, sizeof *map->rows, 64)) {
        free(cells);
        return NULL;
    }
    map->last = map->n_rows;
    map->rows[map->n_rows] = (struct map_row){ key, cells };
    return &map->rows[map->n_rows++];
}

/* The column of unit @i of @n. */
static size_t column_of(const struct heat_map *map, uint64_t i, uint64_t n)
{
    return n <= map->n_columns ? (size_t)i : (size_t)((long double)i * map->n_columns / n);
}

int map_add(struct heat_map *map, const struct tensor *tensor, int64_t key, uint64_t index,
            const double *values, uint64_t width)
{
    struct map_row *row = find_row(map, key < 0 ? (int64_t)index : key);
    size_t layer = column_of(map, (uint64_t)(tensor - map->tensors), map->n_tensors);
    map->by_position |= key >= 0;
    for (uint64_t i = 0; row && i < width; i++) {
        struct map_cell *cell = &row->cells[map->n_tensors > 1 ? layer : column_of(map, i, width)];
        cell->n++;
        if (isfinite(values[i]))
            cell->squares += (long double)values[i] * values[i];
        else
            cell->n_not_finite++;
    }
    return row ? 0 : -ENOMEM;
}

/* NAN where there is nothing, or something that is not finite. */
static double value_of(const struct map_cell *cell)
{
    return cell->n && !cell->n_not_finite ? (double)sqrtl(cell->squares / cell->n) : (double)NAN;
}

void map_deinit_rows(struct heat_map *map)
{
    for (size_t i = 0; i < map->n_rows; i++)
        free(map->rows[i].cells);
    free(map->rows);
    map->rows = NULL;
    map->n_rows = map->room = 0;
}

/* ------------------------------------------------------------------------- scale */

struct scale {
    double least, most; /* of the cells above 0; 0: there are none */
    uint64_t n_zero, n_not_finite, n_empty;
};

static struct scale scale_of(const struct heat_map *map)
{
    struct scale s = { 0 };
    for (size_t i = 0; i < map->n_rows * map->n_columns; i++) {
        const struct map_cell *cell = &map->rows[i / map->n_columns].cells[i % map->n_columns];
        double v = value_of(cell);
        s.n_empty += !cell->n;
        s.n_not_finite += cell->n_not_finite != 0;
        s.n_zero += v == 0;
        if (!(v > 0))
            continue;
        s.least = s.least == 0 || v < s.least ? v : s.least;
        s.most = v > s.most ? v : s.most;
    }
    return s;
}

/* Where a level begins: equal steps of the logarithm. */
static double bound_of(const struct scale *s, size_t level, size_t n)
{
    return level == n ? s->most : s->least * pow(s->most / s->least, (double)level / (double)n);
}

/* @v: above 0 */
static size_t level_of(const struct scale *s, double v, size_t n)
{
    size_t level = n - 1;
    while (level && v < bound_of(s, level, n))
        level--;
    return level;
}

/* ------------------------------------------------------------------------- text */

static void add_level(struct text *to, size_t level, const struct map_style *style)
{
    if (style->colour)
        text_printf(to, "\x1b[38;5;%um█\x1b[0m", ramp[level]);
    else
        text_add(to, &shades[level], 1);
}

static void add_not_finite(struct text *to, const struct map_style *style)
{
    text_printf(to, style->colour ? "\x1b[38;5;231;48;5;196m!\x1b[0m" : "!");
}

static void add_cell(struct text *to, const struct map_cell *cell, const struct scale *scale,
                     const struct map_style *style)
{
    double v = value_of(cell);
    if (!cell->n)
        text_add(to, "?", 1);
    else if (cell->n_not_finite)
        add_not_finite(to, style);
    else if (v == 0)
        text_add(to, " ", 1);
    else
        add_level(to, level_of(scale, v, n_levels(style)), style);
}

static void print_title(struct report *report, const struct heat_map *map)
{
    const struct tensor *first = map->tensors, *last = first + map->n_tensors - 1;
    const char *rows = map->by_position ? "positions" : "rows";
    if (map->n_tensors > 1)
        report_line(report, "%s to %s: %s down, layers %d to %d across, %zu columns", first->key,
                    last->name, rows, first->layer, last->layer, map->n_columns);
    else
        report_line(report, "%s: %s down, %" PRIu64 " elements across, %zu columns", first->key,
                    rows, first->width, map->n_columns);
}

static void print_rows(struct report *report, const struct heat_map *map, const struct scale *scale,
                       const struct map_style *style)
{
    for (size_t i = 0; i < map->n_rows; i++) {
        _cleanup_(text_deinit) struct text t = { 0 };
        text_printf(&t, "%8" PRId64 " |", map->rows[i].key);
        for (size_t c = 0; c < map->n_columns; c++)
            add_cell(&t, &map->rows[i].cells[c], scale, style);
        text_add(&t, "|", 1);
        report_drawn_line(report, &t);
    }
}

static void print_scale(struct report *report, const struct scale *scale,
                        const struct map_style *style)
{
    _cleanup_(text_deinit) struct text t = { 0 };
    size_t n = n_levels(style);
    report_line(
        report,
        "%8s  a cell: the root mean square of its values, divided by the site's scale; logarithmic",
        "");
    text_printf(&t, "%8s  ", "");
    for (size_t level = 0; scale->most > 0 && level < n; level++)
        if (!style->colour || level % 3 == 0 || level == n - 1) {
            add_level(&t, level, style);
            text_printf(&t, " %.3g  ", bound_of(scale, level, n));
        }
    if (scale->most > 0)
        text_printf(&t, "to %.3g", scale->most);
    if (scale->n_zero)
        text_printf(&t, "; blank: 0 (%" PRIu64 " cells)", scale->n_zero);
    if (scale->n_not_finite) {
        text_printf(&t, "; ");
        add_not_finite(&t, style);
        text_printf(&t, " holds NaN or infinity (%" PRIu64 " cells)", scale->n_not_finite);
    }
    if (scale->n_empty)
        text_printf(&t, "; ? not captured (%" PRIu64 " cells)", scale->n_empty);
    report_drawn_line(report, &t);
}

/* ------------------------------------------------------------------------- JSON */

static json_t *row_object(const struct heat_map *map, const struct map_row *row)
{
    json_t *cells = json_array();
    for (size_t c = 0; c < map->n_columns; c++)
        json_array_append_new(cells, row->cells[c].n ? value_double(value_of(&row->cells[c]))
                                                     : json_null());
    return json_pack("{s:o, s:s, s:o, s:s, s:o}", "tensor", value_text(map->tensors->key),
                     "columns", map->n_tensors > 1 ? "layers" : "elements",
                     map->by_position ? "position" : "row", json_integer(row->key), "cell",
                     "root mean square", "cells", cells);
}

void map_print(struct report *report, const struct heat_map *map, const struct map_style *style)
{
    if (!map->n_rows || !map->n_columns)
        return;
    for (size_t i = 0; report->json && i < map->n_rows; i++)
        report_row(report, row_object(map, &map->rows[i]));
    if (report->json)
        return;
    const struct scale scale = scale_of(map);
    print_title(report, map);
    print_rows(report, map, &scale, style);
    print_scale(report, &scale, style);
}
