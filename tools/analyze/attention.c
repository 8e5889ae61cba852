/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/analyze/attention.h"

#include "tools/analyze/describe.h"
#include "tools/analyze/weights_file.h"
#include "tools/common/pairs.h"
#include "tools/common/report.h"
#include "tools/common/weight_map.h"

#include <stdlib.h>
#include <string.h>

struct taken {
    struct pairs pairs;
    struct weight_map map;
    struct weights_file file;
    bool skip_first, has_map, has_file;
    int failure; /* of writing: -errno */
};

/* ------------------------------------------------------------------------- the map */

static void print_map(struct report *r, const struct weight_map *m,
                      const struct dmi_analyze_shape *shape)
{
    static const char shades[] = " .:-=+*#%@";
    report_line(r, "%s", "");
    report_line(r, "%9s keys 0 to %lld: ' ' below 0.05, '@' above 0.95", "QUERY",
                (long long)m->n_keys - 1);
    for (size_t i = 0; i < m->n_rows; i++) {
        char line[WEIGHT_MAP_CELLS + 1] = { 0 };
        for (size_t k = 0; k < m->n_columns; k++) {
            float v = m->cells[i * m->n_columns + k];
            line[k] = v >= 0 && v <= 1.001f
                          ? shades[(int)(v * 9 + 0.5f) > 9 ? 9 : (int)(v * 9 + 0.5f)]
                          : '?';
        }
        report_line(r, "%9lld %s", (long long)weight_map_query(m, shape, i), line);
    }
}

static json_t *map_object(const struct weight_map *m, const struct dmi_analyze_shape *shape)
{
    json_t *rows = json_array(), *queries = json_array();
    for (size_t i = 0; i < m->n_rows; i++) {
        json_t *row = json_array();
        for (size_t k = 0; k < m->n_columns; k++)
            json_array_append_new(row, value_double((double)m->cells[i * m->n_columns + k]));
        json_array_append_new(rows, row);
        json_array_append_new(queries, json_integer(weight_map_query(m, shape, i)));
    }
    return json_pack("{s:o, s:o}", "queries", queries, "cells", rows);
}

/* ------------------------------------------------------------------------- the answer */

static int take_rows(void *arg, const struct dmi_analyze_rows *rows)
{
    struct taken *t = arg;
    pairs_add(&t->pairs, rows, t->skip_first);
    if (t->has_map)
        weight_map_add(&t->map, rows, t->skip_first);
    if (t->has_file)
        t->failure = weights_file_add(&t->file, rows);
    return t->failure;
}

static void cell_weight(struct text *to, const json_t *row)
{
    const json_t *weight = json_object_get(row, "weight");
    if (json_is_null(weight))
        text_printf(to, "not finite");
    else
        text_printf(to, "%.4f", json_number_value(weight));
}

static const struct column pair_columns[] = {
    { "LAYER", "layer", 5, NULL },           { "HEAD", "head", 5, NULL },
    { "QUERY", "query", 8, NULL },           { "KEY", "key", 8, NULL },
    { "WEIGHT", "weight", 10, cell_weight },
};

static void print_pairs(struct report *r, const struct pairs *p)
{
    report_line(r, "%s", "");
    report_table(r, "pairs", pair_columns, sizeof pair_columns / sizeof *pair_columns);
    for (size_t i = 0; i < p->n; i++) {
        const struct pair *a = &p->all[i];
        report_row(r, json_pack("{s:o, s:I, s:I, s:I, s:o}", "layer", value_layer(a->layer), "head",
                                (json_int_t)a->head, "query", (json_int_t)a->query, "key",
                                (json_int_t)a->key, "weight", value_double((double)a->weight)));
    }
    report_table_end(r);
}

static int give_answer(const struct analyze_options *o, struct asked *a, struct taken *t)
{
    struct report r = { .json = o->json };
    struct dmi_analyze_shape shape = { .size = sizeof shape };
    dmi_analyze_shape(a->answer, &shape);
    pairs_sort(&t->pairs);
    describe_answer(&r, a);
    print_pairs(&r, &t->pairs);
    if (t->has_map) {
        print_map(&r, &t->map, &shape);
        report_member(&r, "map", map_object(&t->map, &shape));
    }
    return report_end(&r, ANALYZE_OK);
}

/* Several heads have several maps. */
static int check_map(const struct analyze_options *o, struct asked *a)
{
    struct dmi_analyze_shape shape = { .size = sizeof shape };
    dmi_analyze_shape(a->answer, &shape);
    if (!o->map || (shape.n_layers == 1 && (a->heads ? a->n_heads : shape.n_heads) == 1))
        return ANALYZE_OK;
    complain("--map: of one head: say which one by --layers and --heads");
    return ANALYZE_USAGE;
}

static int begin(const struct analyze_options *o, struct asked *a, struct taken *t)
{
    struct err err = { 0 };
    struct dmi_analyze_shape shape = { .size = sizeof shape };
    dmi_analyze_shape(a->answer, &shape);
    if (pairs_init(&t->pairs, o->n_top) ||
        (o->map && weight_map_init(&t->map, &shape, WEIGHT_MAP_CELLS))) {
        complain("no memory");
        return ANALYZE_USAGE;
    }
    if (o->output && weights_file_begin(&err, o, a, &t->file)) {
        complain("%s", err.msg);
        return ANALYZE_USAGE;
    }
    return ANALYZE_OK;
}

static int compute(const struct analyze_options *o, struct asked *a, struct taken *t)
{
    struct err err = { 0 };
    int status = begin(o, a, t);
    if (status)
        return status;
    if (dmi_analyze_attention(a->answer, take_rows, t)) {
        complain("%s", t->failure ? strerror(-t->failure) : dmi_analyze_error(a->answer));
        return t->failure ? ANALYZE_USAGE : ANALYZE_FAILED;
    }
    status = asked_judge(o, a);
    if (status || !o->output || !weights_file_end(&err, o, a, &t->file))
        return status;
    complain("%s", err.msg);
    return ANALYZE_USAGE;
}

int analyze_attention(const struct analyze_options *o)
{
    struct asked a = { 0 };
    struct taken t = { .skip_first = o->skip_first,
                       .has_map = o->map,
                       .has_file = o->output != NULL,
                       .file.place.fd = -1 };
    int status = asked_answer(o, &a);
    if (!status)
        status = check_map(o, &a);
    if (!status)
        status = compute(o, &a, &t);
    if (!status)
        status = give_answer(o, &a, &t);
    weights_file_deinit(&t.file);
    pairs_deinit(&t.pairs);
    weight_map_deinit(&t.map);
    asked_close(&a);
    return status;
}
