/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/analyze/heads.h"

#include "core/cleanup.h"
#include "tools/analyze/describe.h"
#include "tools/analyze/result.h"
#include "tools/common/head_scores.h"

#include <dmi/analyze_heads.h>
#include <dmi/dtype.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FORMULA "1"

/* ------------------------------------------------------------------------- lists */

static void list_kind(struct report *r, size_t kind, struct dmi_analyze_score *scores, size_t n,
                      uint32_t n_top)
{
    report_line(r, "%s", "");
    report_line(r, "%s: %s", head_scores[kind].name, head_scores[kind].what);
    head_scores_sort(scores, n, kind);
    if (n && isnan(head_score_of(&scores[0], kind))) {
        report_line(
            r, "    not defined: no token of the queries came before, or the run has no token_ids");
        return;
    }
    for (size_t i = 0; i < n && i < n_top; i++)
        report_line(r, "%5d.%-4u %.4f", scores[i].layer, scores[i].head,
                    head_score_of(&scores[i], kind));
}

static json_t *score_object(const struct dmi_analyze_score *s)
{
    json_t *o =
        json_pack("{s:o, s:I}", "layer", value_layer(s->layer), "head", (json_int_t)s->head);
    for (size_t k = 0; k < HEAD_SCORES; k++)
        json_object_set_new(o, head_scores[k].name, value_double(head_score_of(s, k)));
    return o;
}

static void print(struct report *r, const struct analyze_options *o, struct asked *a,
                  struct dmi_analyze_score *scores, size_t n)
{
    json_t *all = json_array();
    describe_answer(r, a);
    for (size_t i = 0; i < n; i++)
        json_array_append_new(all, score_object(&scores[i]));
    report_member(r, "scores", all);
    report_member(r, "repeated", value_u64(n ? scores[0].n_repeated : 0));
    for (size_t k = 0; k < HEAD_SCORES && !r->json; k++)
        if (head_scores[k].what)
            list_kind(r, k, scores, n, o->n_top);
}

/* ------------------------------------------------------------------------- the file */

static json_t *metadata(const struct analyze_options *o, struct asked *a)
{
    struct dmi_analyze_proof p = { .size = sizeof p };
    dmi_analyze_proof(a->answer, -1, -1, &p);
    json_t *m = result_metadata("heads", FORMULA, a->run,
                                json_pack("{s:b, s:b}", "exclude_bos", o->exclude_bos,
                                          "exclude_current", o->exclude_current));
    struct dmi_analyze_shape s = { .size = sizeof s };
    dmi_analyze_shape(a->answer, &s);
    result_say_edits(m, a->run, s.request, s.request_bytes);
    if (p.n_rows)
        result_say(m, "checks",
                   json_pack("[{s:s, s:o, s:f, s:I}]", "name", "A v = z", "error",
                             value_double(p.error), "bound", p.bound, "rows",
                             (json_int_t)p.n_rows));
    return m;
}

/* A number a head: first all layers, then heads, then each kind. */
static int write_numbers(struct err *err, struct result *r, const struct dmi_analyze_score *scores,
                         uint64_t n, const uint64_t at[HEAD_SCORES + 2])
{
    int e = 0;
    for (uint64_t i = 0; i < n && !e; i++) {
        int64_t layer = scores[i].layer, head = scores[i].head;
        e = result_write(err, r, &layer, 8, at[HEAD_SCORES] + i * 8);
        if (!e)
            e = result_write(err, r, &head, 8, at[HEAD_SCORES + 1] + i * 8);
        for (size_t k = 0; k < HEAD_SCORES && !e; k++) {
            double v = head_score_of(&scores[i], k);
            e = result_write(err, r, &v, 8, at[k] + i * 8);
        }
    }
    return e;
}

static int write_file(struct err *err, const struct analyze_options *o, struct asked *a,
                      const struct dmi_analyze_score *scores, uint64_t n)
{
    struct result r;
    uint64_t at[HEAD_SCORES + 2];
    int e = result_open(err, &r, o->output, o->force, a->run);
    if (!e)
        e = result_begin(err, &r, metadata(o, a));
    for (size_t k = 0; k < HEAD_SCORES && !e; k++)
        at[k] = result_add(&r, head_scores[k].name, DMI_DTYPE_F64, &n, 1);
    at[HEAD_SCORES] = result_add(&r, "layers", DMI_DTYPE_I64, &n, 1);
    at[HEAD_SCORES + 1] = result_add(&r, "heads", DMI_DTYPE_I64, &n, 1);
    if (!e)
        e = result_end_header(err, &r);
    if (!e)
        e = write_numbers(err, &r, scores, n, at);
    if (!e)
        e = result_keep(err, &r);
    result_deinit(&r);
    return e;
}

/* ------------------------------------------------------------------------- the answer */

static int compute(const struct analyze_options *o, struct asked *a,
                   struct dmi_analyze_score **scores, int64_t *n)
{
    struct dmi_analyze_shape shape = { .size = sizeof shape };
    uint32_t flags = (o->exclude_bos ? DMI_ANALYZE_WITHOUT_FIRST : 0u) |
                     (o->exclude_current ? DMI_ANALYZE_WITHOUT_CURRENT : 0u);
    const struct dmi_analyze_heads_options options = { .size = sizeof options,
                                                       .flags = flags,
                                                       .ids_site = o->ids };
    dmi_analyze_shape(a->answer, &shape);
    size_t room = (size_t)shape.n_layers * shape.n_heads;
    *scores = calloc(room + 1, sizeof **scores);
    *n = *scores ? dmi_analyze_heads(a->answer, &options, *scores, sizeof **scores, room) : -1;
    if (*n >= 0)
        return asked_judge(o, a);
    complain("%s", *scores ? dmi_analyze_error(a->answer) : "no memory");
    return ANALYZE_FAILED;
}

int analyze_heads(const struct analyze_options *o)
{
    struct asked a = { 0 };
    struct err err = { 0 };
    struct report r = { .json = o->json };
    _cleanup_(freep) struct dmi_analyze_score *scores = NULL;
    int64_t n = 0;
    int status = asked_answer(o, &a);
    if (!status)
        status = compute(o, &a, &scores, &n);
    if (!status && o->output && write_file(&err, o, &a, scores, (uint64_t)n)) {
        complain("%s", err.msg);
        status = ANALYZE_USAGE;
    }
    if (!status) {
        print(&r, o, &a, scores, (size_t)n);
        status = report_end(&r, ANALYZE_OK);
    }
    asked_close(&a);
    return status;
}
