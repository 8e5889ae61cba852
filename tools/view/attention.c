/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of each request, where it was captured: scores of all heads, each head's weights pooled to a thumbnail, its strongest pairs, and
 * the weights of chosen heads whole. What its proof refuses is not in a report.
 */
#include "tools/view/view.h"

#include "analyze/plan.h"
#include "core/cleanup.h"
#include "tools/common/edit_words.h"
#include "tools/common/head_scores.h"
#include "tools/common/pairs.h"
#include "tools/common/proof.h"
#include "tools/common/queries.h"
#include "tools/common/weight_map.h"
#include "tools/view/patterns.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MOST_PAIRS   6    /* of a head, of all keys and of those but key 0 */
#define HEAD_BYTES   1000 /* in the document, beside its arrays; and for each layer */
#define LAYER_BYTES  12
#define LEAST_CELLS  8         /* of a thumbnail's side, where it has to be small */
#define NOT_FINITE   255       /* a thumbnail's cell; the others are of 254 */
#define MEMORY_BYTES (4 << 20) /* for keys, values and rows */

/* What all requests share. */
struct sharing {
    struct view_report *report;
    uint64_t thumbnail_room; /* bytes of the document, of the requests that come */
    uint64_t pattern_room;
    uint64_t n_left; /* requests that come */
    uint64_t n_answers, n_refused, n_left_out, n_coarse, n_without, n_cut;
    char why[320]; /* the first one was refused */
};

/* Attention of one request. */
struct request_attention {
    int64_t request;         /* its number, -1: none */
    struct dmi_read_name id; /* NULL: none */
    struct dmi_analyze_options options;
    struct dmi_analyze *answer;
    struct dmi_analyze_shape shape;
    struct dmi_analyze_proof proof;
    struct dmi_analyze_score *scores; /* by layer and head, as the next ones */
    struct weight_map *maps;
    struct pairs *pairs; /* two a head: of all keys, of all but key 0 */
    size_t n;            /* heads of all layers */
    size_t at;           /* the layer that rows came of last */
    size_t side;         /* cells of a thumbnail's side, at most */
    int64_t *queries;    /* that --tokens names; NULL: all */
    struct patterns patterns;
};

static void answer_deinit(struct request_attention *a)
{
    for (size_t i = 0; i < a->n && a->maps; i++)
        weight_map_deinit(&a->maps[i]);
    for (size_t i = 0; i < 2 * a->n && a->pairs; i++)
        pairs_deinit(&a->pairs[i]);
    free(a->scores);
    free(a->maps);
    free(a->pairs);
    free(a->queries);
    patterns_deinit(&a->patterns);
    dmi_analyze_close(a->answer);
}

/* ------------------------------------------------------------------------- opening */

/* What is selected of a run, of one request; rows of cached tokens, too, but those of @positions alone. */
static int select_request(struct view_report *report, const struct request_attention *a,
                          const char *positions)
{
    struct dmi_read_selection s = report->selection;
    s.requests = &a->id;
    s.n_requests = a->id.text ? 1 : 0;
    s.flags |= DMI_READ_FILL_CACHED;
    s.layers = NULL;
    s.positions = positions;
    return dmi_read_select(report->run, &s);
}

static int open_answer(struct err *err, struct view_report *report, struct request_attention *a)
{
    char why[512] = "";
    dmi_analyze_close(a->answer);
    a->answer = NULL;
    int r = dmi_analyze_open(report->run, &a->options, &a->answer, why, sizeof why);
    if (r)
        return err_set(err, r, "%s", why);
    dmi_analyze_shape(a->answer, &a->shape);
    return 0;
}

/* Words for tokens mean positions by what the run says of the request. */
static int choose_queries(struct err *err, struct view_report *report, struct request_attention *a)
{
    const struct dmi_analyze_shape *s = &a->shape;
    _cleanup_(freep) bool *wanted = calloc((size_t)s->n_keys + 1, sizeof *wanted);
    a->queries = calloc(s->n_queries + 1, sizeof *a->queries);
    if (!wanted || !a->queries)
        return err_set_errno(err, ENOMEM, "cannot choose queries");
    int r = select_request(report, a, report->selection.positions);
    if (!r)
        queries_note(report->run, dmi_analyze_layer(a->answer, 0), wanted, s->n_keys);
    if (!r)
        r = select_request(report, a, NULL);
    if (r)
        return err_set(err, r, "%s", dmi_read_error(report->run));
    a->options.queries = a->queries;
    for (uint64_t i = 0; i < s->n_queries; i++)
        if (wanted[s->queries[i]])
            a->queries[a->options.n_queries++] = s->queries[i];
    if (!a->options.n_queries)
        return err_set(err, -ENODATA, "none of its queries is among the tokens that were chosen");
    return open_answer(err, report, a);
}

static int begin(struct err *err, struct view_report *report, struct request_attention *a)
{
    a->shape.size = sizeof a->shape;
    a->proof.size = sizeof a->proof;
    a->options = (struct dmi_analyze_options){ .size = sizeof a->options,
                                               .request = a->id.text,
                                               .request_bytes = a->id.bytes,
                                               .layers = report->selection.layers,
                                               .model = report->model,
                                               .n_memory = MEMORY_BYTES };
    int r = select_request(report, a, NULL);
    if (r)
        return err_set(err, r, "%s", dmi_read_error(report->run));
    r = open_answer(err, report, a);
    return r || !report->selection.positions ? r : choose_queries(err, report, a);
}

/* ------------------------------------------------------------------------- what fits */

/* Bytes in the document of all but thumbnails and patterns. */
static uint64_t cost_of_numbers(const struct request_attention *a)
{
    const struct dmi_analyze_shape *s = &a->shape;
    uint64_t n = (uint64_t)s->n_layers * s->n_heads;
    return HEAD_BYTES + LAYER_BYTES * s->n_layers + (HEAD_SCORES + 1) * document_cost(8 * n) +
           6 * document_cost(4 * MOST_PAIRS * n) + document_cost(4 * s->n_queries);
}

static uint64_t cost_of_thumbnails(const struct request_attention *a, size_t side)
{
    const struct dmi_analyze_shape *s = &a->shape;
    return document_cost((uint64_t)s->n_layers * s->n_heads * weight_map_side(s->n_queries, side) *
                         weight_map_side((uint64_t)s->n_keys, side));
}

/* The most cells of a side for which there is room. Return: whether there is any. */
static bool choose_side(struct sharing *all, struct request_attention *a)
{
    uint64_t numbers = cost_of_numbers(a), share = all->thumbnail_room / all->n_left;
    a->side = WEIGHT_MAP_CELLS;
    while (a->side > LEAST_CELLS && numbers + cost_of_thumbnails(a, a->side) > share)
        a->side /= 2;
    uint64_t cost = numbers + cost_of_thumbnails(a, a->side);
    if (cost > share)
        return false;
    all->thumbnail_room -= share;
    all->pattern_room += share - cost;
    all->n_coarse += a->side < WEIGHT_MAP_CELLS &&
                     cost_of_thumbnails(a, a->side) < cost_of_thumbnails(a, WEIGHT_MAP_CELLS);
    return true;
}

/* As many heads as there is room for; four of them at least, where it lasts. */
static void cut_patterns(struct sharing *all, struct patterns *p)
{
    uint64_t cost = patterns_cost(p), share = all->pattern_room / all->n_left;
    share = share < 4 * cost ? 4 * cost : share;
    share = share < all->pattern_room ? share : all->pattern_room;
    uint64_t n = share / cost < p->n ? share / cost : p->n;
    all->n_without += p->n - n;
    all->n_cut += n && p->first_key > 0;
    all->pattern_room -= n * cost;
    patterns_cut(p, (size_t)n);
}

/* ------------------------------------------------------------------------- computing */

static int take_memory(struct request_attention *a)
{
    a->n = (size_t)a->shape.n_layers * a->shape.n_heads;
    a->scores = calloc(a->n + 1, sizeof *a->scores);
    a->maps = calloc(a->n + 1, sizeof *a->maps);
    a->pairs = calloc(2 * a->n + 1, sizeof *a->pairs);
    int r = a->scores && a->maps && a->pairs ? 0 : -ENOMEM;
    for (size_t i = 0; !r && i < a->n; i++)
        if (weight_map_init(&a->maps[i], &a->shape, a->side) ||
            pairs_init(&a->pairs[2 * i], MOST_PAIRS) ||
            pairs_init(&a->pairs[2 * i + 1], MOST_PAIRS))
            r = -ENOMEM;
    return r;
}

/* The number of a head among those of all layers, which come in order. */
static size_t number_of(struct request_attention *a, const struct dmi_analyze_rows *rows)
{
    if (dmi_analyze_layer(a->answer, a->at) != rows->layer)
        for (a->at = 0; dmi_analyze_layer(a->answer, a->at) != rows->layer;)
            a->at++;
    return a->at * a->shape.n_heads + rows->head;
}

static int take_rows(void *arg, const struct dmi_analyze_rows *rows)
{
    struct request_attention *a = arg;
    size_t i = number_of(a, rows);
    weight_map_add(&a->maps[i], rows, false);
    pairs_add(&a->pairs[2 * i], rows, false);
    pairs_add(&a->pairs[2 * i + 1], rows, true);
    return 0;
}

/* What may be given. */
static int compute(struct err *err, struct request_attention *a, struct dmi_read *run)
{
    const struct dmi_analyze_heads_options o = { .size = sizeof o, .take = take_rows, .arg = a };
    char why[1024];
    if (take_memory(a))
        return err_set_errno(err, ENOMEM, "cannot compute attention");
    int64_t n = dmi_analyze_heads(a->answer, &o, a->scores, sizeof *a->scores, a->n);
    if (n < 0)
        return err_set(err, (int)n, "%s", dmi_analyze_error(a->answer));
    dmi_analyze_proof(a->answer, -1, -1, &a->proof);
    if (proof_refuses(&a->proof, &a->shape, why, sizeof why)) {
        edit_words_add(why, sizeof why, run,
                       a->request < 0 ? DMI_READ_NOBODY : (uint64_t)a->request);
        return err_set(err, -EBADMSG, "%s", why);
    }
    for (size_t i = 0; i < 2 * a->n; i++)
        pairs_sort(&a->pairs[i]);
    return 0;
}

/* ------------------------------------------------------------------------- the document */

/* Return: 0 or -ENOMEM, as the others. */
static int add_scores(struct document *d, struct request_attention *a)
{
    _cleanup_(freep) double *values = calloc(a->n + 1, sizeof *values);
    if (!values)
        return -ENOMEM;
    document_begin(d, "scores", '{');
    for (size_t kind = 0; kind < HEAD_SCORES; kind++) {
        for (size_t i = 0; i < a->n; i++)
            values[i] = head_score_of(&a->scores[i], kind);
        document_doubles(d, head_scores[kind].name, values, a->n);
    }
    document_end(d, '}');
    for (size_t i = 0; i < a->n; i++) {
        struct dmi_analyze_proof p = { .size = sizeof p };
        dmi_analyze_proof(a->answer, a->scores[i].layer, a->scores[i].head, &p);
        values[i] = p.n_rows ? p.error : NAN;
    }
    document_doubles(d, "errors", values, a->n);
    return 0;
}

static int add_thumbnails(struct document *d, const struct request_attention *a)
{
    size_t n = a->maps[0].n_rows * a->maps[0].n_columns;
    _cleanup_(freep) uint8_t *cells = calloc(a->n * n + 1, 1);
    if (!cells)
        return -ENOMEM;
    for (size_t i = 0; i < a->n * n; i++) {
        float weight = a->maps[i / n].cells[i % n];
        cells[i] = weight >= 0 && weight <= 1.001f
                       ? (uint8_t)(weight > 1 ? 254 : lrintf(weight * 254))
                       : NOT_FINITE;
    }
    document_add(d, "rows", value_u64(a->maps[0].n_rows));
    document_add(d, "columns", value_u64(a->maps[0].n_columns));
    document_octets(d, "thumbnails", cells, a->n * n);
    return 0;
}

/* The strongest pairs of each head; queries and keys are -1 where a head has fewer. @which: 0: of all keys; 1: of all but key 0. */
static int add_pairs(struct document *d, const char *key, const struct request_attention *a,
                     size_t which)
{
    size_t n = a->n * MOST_PAIRS;
    _cleanup_(freep) int32_t *queries = calloc(n + 1, sizeof *queries);
    _cleanup_(freep) int32_t *keys = calloc(n + 1, sizeof *keys);
    _cleanup_(freep) float *weights = calloc(n + 1, sizeof *weights);
    if (!queries || !keys || !weights)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        const struct pairs *p = &a->pairs[i / MOST_PAIRS * 2 + which];
        bool there = i % MOST_PAIRS < p->n;
        queries[i] = there ? (int32_t)p->all[i % MOST_PAIRS].query : -1;
        keys[i] = there ? (int32_t)p->all[i % MOST_PAIRS].key : -1;
        weights[i] = there ? p->all[i % MOST_PAIRS].weight : 0;
    }
    document_begin(d, key, '{');
    document_integers(d, "queries", queries, n);
    document_integers(d, "keys", keys, n);
    document_floats(d, "weights", weights, n);
    document_end(d, '}');
    return 0;
}

static int add_positions(struct document *d, const struct request_attention *a)
{
    uint64_t n = a->shape.n_queries;
    _cleanup_(freep) int32_t *positions = calloc(n + 1, sizeof *positions);
    if (!positions)
        return -ENOMEM;
    for (uint64_t i = 0; i < n; i++)
        positions[i] = (int32_t)a->shape.queries[i];
    document_integers(d, "positions", positions, n);
    return 0;
}

static json_t *layers_of(const struct request_attention *a)
{
    json_t *layers = json_array();
    for (uint32_t i = 0; i < a->shape.n_layers; i++)
        json_array_append_new(layers, json_integer(dmi_analyze_layer(a->answer, i)));
    return layers;
}

static void add_facts(struct document *d, const struct request_attention *a)
{
    const struct dmi_analyze_shape *s = &a->shape;
    document_add(d, "layers", layers_of(a));
    document_add(d, "heads", json_integer(s->n_heads));
    document_add(d, "kv_heads", json_integer(s->n_kv_heads));
    document_add(d, "queries", value_u64(s->n_queries));
    document_add(d, "keys", json_integer(s->n_keys));
    document_add(d, "multiplier", value_double(s->multiplier));
    document_add(d, "borrowed", value_u64(s->n_borrowed));
    document_add(d, "repeated", value_u64(a->n ? a->scores[0].n_repeated : 0));
    document_add(d, "proof", proof_value(&a->proof));
}

static void begin_entry(struct document *d, const struct request_attention *a)
{
    document_begin(d, NULL, '{');
    document_add(d, "request", json_integer(a->request));
    document_add(d, "id", a->id.text ? document_bytes(a->id.text, a->id.bytes) : json_null());
}

/* Scores lose their order once patterns are chosen, so these come last. */
static int add_answer(struct err *err, struct sharing *all, struct request_attention *a)
{
    struct view_report *report = all->report;
    struct document *d = &report->document;
    begin_entry(d, a);
    add_facts(d, a);
    int r = add_positions(d, a);
    if (!r)
        r = add_scores(d, a);
    if (!r)
        r = add_thumbnails(d, a);
    if (!r)
        r = add_pairs(d, "pairs", a, 0);
    if (!r)
        r = add_pairs(d, "pairs_but_first", a, 1);
    patterns_size(&a->patterns, &a->shape);
    if (!r)
        r = patterns_choose(&a->patterns, report->heads, report->n_heads, a->scores, a->n);
    if (r)
        return err_set_errno(err, -r, "cannot show attention");
    cut_patterns(all, &a->patterns);
    r = patterns_compute(err, &a->patterns, report->run, &a->options, &a->shape);
    patterns_add(d, &a->patterns);
    document_end(d, '}');
    return r;
}

static void add_refusal(struct sharing *all, const struct request_attention *a, const char *why)
{
    struct document *d = &all->report->document;
    if (!all->n_refused++)
        snprintf(all->why, sizeof all->why, "%.300s", why);
    begin_entry(d, a);
    document_add(d, "refused", document_text(why));
    document_end(d, '}');
}

/* ------------------------------------------------------------------------- the requests */

/* A head that is named and that the model has not. Return: 0 or -EINVAL with a sentence in @err. */
static int check_named(struct err *err, const struct view_report *report,
                       const struct request_attention *a)
{
    for (size_t i = 0; i < report->n_heads; i++) {
        const struct dmi_analyze_head *h = &report->heads[i];
        uint32_t k = 0;
        while (k < a->shape.n_layers && dmi_analyze_layer(a->answer, k) != h->layer)
            k++;
        if (k == a->shape.n_layers || h->head >= a->shape.n_heads)
            return err_set(err, -EINVAL,
                           "--head %d.%u: there is no such head: %u layers have %u heads each",
                           h->layer, h->head, a->shape.n_layers, a->shape.n_heads);
    }
    return 0;
}

/* Return: 0, also where it is refused, or -errno with a sentence in @err. */
static int add_request(struct err *err, struct sharing *all, struct request_attention *a)
{
    struct err why = { 0 };
    int r = begin(&why, all->report, a);
    if (!r && (r = check_named(err, all->report, a)))
        return r;
    if (!r && !choose_side(all, a)) {
        all->n_left_out++;
        return 0;
    }
    if (!r)
        r = compute(&why, a, all->report->run);
    if (r) {
        add_refusal(all, a, why.msg);
        return 0;
    }
    all->n_answers++;
    return add_answer(err, all, a);
}

static void say_what_lacks(const struct sharing *all)
{
    struct view_report *report = all->report;
    uint64_t n = all->n_answers + all->n_refused + all->n_left_out;
    if (all->n_refused)
        view_leave_out(report, "attention of %" PRIu64 " of %" PRIu64 " requests is left out: %s",
                       all->n_refused, n, all->why);
    if (all->n_left_out)
        view_leave_out(
            report, "attention of %" PRIu64 " of %" PRIu64 " requests is left out: it does not fit",
            all->n_left_out, n);
    if (all->n_coarse)
        view_leave_out(report,
                       "heads of %" PRIu64 " of %" PRIu64 " requests have fewer cells than %d a "
                       "side",
                       all->n_coarse, n, WEIGHT_MAP_CELLS);
    if (all->n_without)
        view_leave_out(report, "%" PRIu64 " chosen heads are not there at full resolution",
                       all->n_without);
    if (all->n_cut)
        view_leave_out(report,
                       "heads at full resolution have the last %d tokens, of %" PRIu64
                       " of %" PRIu64 " requests",
                       PATTERNS_TOKENS, all->n_cut, n);
}

static uint64_t count_requests(struct view_report *report)
{
    struct dmi_read_request r = { .size = sizeof r };
    uint64_t n = 0;
    for (uint64_t i = 0; !dmi_read_request(report->run, i, &r); i++)
        n += view_is_chosen(report, &r);
    return n ? n : 1;
}

/* Ids live until the run is closed, whatever is selected. */
static int add_all(struct err *err, struct sharing *all)
{
    struct dmi_read_request q = { .size = sizeof q };
    int r = 0;
    int64_t i = 0;
    for (; !r && !dmi_read_request(all->report->run, (uint64_t)i, &q); i++) {
        struct request_attention a = { .request = i, .id = { q.id, q.id_bytes } };
        if (!view_is_chosen(all->report, &q))
            continue;
        r = add_request(err, all, &a);
        all->n_left--;
        answer_deinit(&a);
    }
    if (i)
        return r;
    struct request_attention a = { .request = -1 };
    r = add_request(err, all, &a);
    answer_deinit(&a);
    return r;
}

int view_attention(struct err *err, struct view_report *report)
{
    uint64_t room = view_room(report) / 2;
    struct sharing all = { .report = report,
                           .thumbnail_room = room / 2,
                           .pattern_room = room / 2,
                           .n_left = count_requests(report) };
    bool captured = plan_is_captured(report->run);
    int r = 0;
    document_begin(&report->document, "attention", '[');
    if (captured)
        r = add_all(err, &all);
    document_end(&report->document, ']');
    say_what_lacks(&all);
    if (!r && report->n_heads && !all.n_answers)
        r = err_set(err, -ENODATA, "--head: no attention is in the report%s%s",
                    all.n_refused ? ": " : "", all.why);
    if (captured && dmi_read_select(report->run, &report->selection) && !r)
        r = err_set(err, -EIO, "%s", dmi_read_error(report->run));
    return r;
}
