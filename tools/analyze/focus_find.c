/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-analyze focus --find: the heads whose focus tells two lists of requests apart. Source: Attention Tracker, arXiv 2411.00348, 3.2. */
#include "core/cleanup.h"
#include "tools/analyze/focus.h"
#include "tools/analyze/heads_file.h"
#include "tools/common/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Sums over the requests of one list, by head. */
struct score_sums {
    double *sum, *squares; /* by head */
    int64_t n_heads;       /* of every request in the list */
    uint64_t n;
};

struct found {
    struct dmi_analyze_head head;
    double plain, injected, gap;
};

static int add_request(struct focus *f, const char *id, size_t n_id, struct score_sums *l)
{
    struct dmi_read_request q;
    char why[512] = "the run has no such request";
    int status = asked_request(&f->asked, id, n_id, &q) ? -1 : focus_of(f, &q, why, sizeof why);
    if (status == -1)
        complain("request %.*s: %s", (int)n_id, id, why);
    if (status)
        return status == -1 ? ANALYZE_USAGE : status;
    if (!l->n) {
        l->n_heads = f->n_heads;
        l->sum = calloc((size_t)f->n_heads + 1, sizeof *l->sum);
        l->squares = calloc((size_t)f->n_heads + 1, sizeof *l->squares);
    }
    if (!l->sum || !l->squares) {
        complain("no memory");
        return ANALYZE_USAGE;
    }
    if (l->n_heads != f->n_heads) {
        complain("request %.*s has %lld heads, those before it have %lld", (int)n_id, id,
                 (long long)f->n_heads, (long long)l->n_heads);
        return ANALYZE_USAGE;
    }
    for (int64_t h = 0; h < f->n_heads; h++) {
        l->sum[h] += f->by_head[h];
        l->squares[h] += f->by_head[h] * f->by_head[h];
    }
    l->n++;
    return ANALYZE_OK;
}

static int add_list(struct focus *f, const char *ids, struct score_sums *l)
{
    int status = ANALYZE_OK;
    while (ids && *ids && !status) {
        size_t n = strcspn(ids, ",");
        status = add_request(f, ids, n, l);
        ids += n + (ids[n] == ',');
    }
    return status;
}

static double mean(const struct score_sums *l, int64_t h)
{
    return l->sum[h] / (double)l->n;
}

/* The deviation of the values in the list, divided by their number. */
static double deviation(const struct score_sums *l, int64_t h)
{
    double m = mean(l, h), v = l->squares[h] / (double)l->n - m * m;
    return v > 0 ? sqrt(v) : 0;
}

static int by_gap(const void *a, const void *b)
{
    const struct found *x = a, *y = b;
    double gap_x = x->plain - x->injected, gap_y = y->plain - y->injected;
    return gap_x != gap_y ? (gap_x < gap_y ? 1 : -1) : 0;
}

/* All heads of the last request's answer, in the order of by_head. */
static size_t judge(struct focus *f, const struct score_sums *plain,
                    const struct score_sums *injected, struct found *out)
{
    struct dmi_analyze_shape shape = { .size = sizeof shape };
    struct dmi_analyze_proof p = { .size = sizeof p };
    size_t n = 0;
    int64_t number = 0;
    dmi_analyze_shape(f->asked.answer, &shape);
    for (uint64_t i = 0; i < shape.n_layers; i++)
        for (uint32_t h = 0; h < shape.n_heads; h++) {
            int32_t layer = dmi_analyze_layer(f->asked.answer, i);
            if (dmi_analyze_proof(f->asked.answer, layer, h, &p))
                continue; /* it was not asked for */
            double k = f->options->times, a = mean(plain, number), b = mean(injected, number);
            double gap = (a - k * deviation(plain, number)) - (b + k * deviation(injected, number));
            if (gap > 0)
                out[n++] = (struct found){ { layer, h }, a, b, gap };
            number++;
        }
    return n;
}

static void show_score(struct text *to, const json_t *value)
{
    text_printf(to, "%.4f", json_number_value(value));
}

static const struct column columns[] = {
    { "LAYER", "layer", 5, NULL },
    { "HEAD", "head", 5, NULL },
    { "PLAIN", "plain", 8, NULL, show_score },
    { "INJECTED", "injected", 9, NULL, show_score },
    { "GAP", "gap", 8, NULL, show_score },
};

static int print(const struct analyze_options *o, const struct found *all, size_t n)
{
    struct report r = { .json = o->json };
    report_table(&r, "heads", columns, sizeof columns / sizeof *columns);
    for (size_t i = 0; i < n; i++)
        report_row(&r, json_pack("{s:i, s:i, s:f, s:f, s:f}", "layer", all[i].head.layer, "head",
                                 (int)all[i].head.head, "plain", all[i].plain, "injected",
                                 all[i].injected, "gap", all[i].gap));
    report_table_end(&r);
    return report_end(&r, ANALYZE_OK);
}

static int give(struct focus *f, const struct score_sums *plain, const struct score_sums *injected)
{
    const struct analyze_options *o = f->options;
    struct dmi_read_run run = { .size = sizeof run };
    _cleanup_(freep) struct found *all = calloc((size_t)f->n_heads + 1, sizeof *all);
    _cleanup_(freep) struct dmi_analyze_head *heads = calloc((size_t)f->n_heads + 1, sizeof *heads);
    if (!all || !heads) {
        complain("no memory");
        return ANALYZE_USAGE;
    }
    size_t n = judge(f, plain, injected, all);
    qsort(all, n, sizeof *all, by_gap);
    n = n < o->n_top ? n : o->n_top;
    for (size_t i = 0; i < n; i++)
        heads[i] = all[i].head;
    if (!n) {
        complain("no head tells them apart by %g standard deviations of each (--times)", o->times);
        return ANALYZE_FAILED;
    }
    dmi_read_run(f->asked.run, &run);
    if (o->output && heads_file_write(o->output, run.path, heads, n))
        return ANALYZE_USAGE;
    return print(o, all, n);
}

int focus_find(struct focus *f)
{
    struct score_sums plain = { 0 }, injected = { 0 };
    int status = ANALYZE_OK;
    if (!f->options->plain || !*f->options->plain || !f->options->injected ||
        !*f->options->injected) {
        complain("--find needs --plain and --injected: ids of requests, separated by commas");
        return ANALYZE_USAGE;
    }
    status = add_list(f, f->options->plain, &plain);
    if (!status)
        status = add_list(f, f->options->injected, &injected);
    if (!status && plain.n_heads != injected.n_heads) {
        complain("--plain and --injected have requests of %lld and of %lld heads",
                 (long long)plain.n_heads, (long long)injected.n_heads);
        status = ANALYZE_USAGE;
    }
    if (!status)
        status = give(f, &plain, &injected);
    free(plain.sum);
    free(plain.squares);
    free(injected.sum);
    free(injected.squares);
    return status;
}
