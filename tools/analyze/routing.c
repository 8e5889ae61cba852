/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/analyze/routing.h"

#include "core/cleanup.h"
#include "core/words.h"
#include "read/value.h"
#include "tools/analyze/asked.h"
#include "tools/analyze/cells.h"
#include "tools/analyze/result.h"
#include "tools/common/edit_words.h"

#include <dmi/analyze_stats.h>
#include <dmi/dtype.h>

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#define FORMULA "1" /* of docs/analysis.md */

/* ------------------------------------------------------------------------- a layer */

static uint64_t n_choices_of(const struct dmi_routing_layer *l)
{
    uint64_t n = 0;
    for (uint32_t e = 0; e < l->n_experts; e++)
        n += l->load[e];
    return n;
}

static json_t *load_value(const struct dmi_routing_layer *l)
{
    json_t *loads = json_array();
    for (uint32_t e = 0; e < l->n_experts; e++)
        json_array_append_new(loads, value_u64(l->load[e]));
    return loads;
}

static json_t *layer_row(const struct dmi_routing_layer *l)
{
    double n = (double)n_choices_of(l);
    return VALUE_OBJECT(
        { "layer", value_layer(l->layer) }, { "experts", json_integer(l->n_experts) },
        { "choices", json_integer(l->n_choices) }, { "tokens", value_u64(l->n_tokens) },
        { "tokens_damaged", value_u64(l->n_damaged) },
        { "choices_invalid", value_u64(l->n_invalid) }, { "load", load_value(l) },
        { "variation", value_double(l->variation) }, { "entropy", value_double(l->entropy) },
        { "entropy_share",
          value_double(l->n_experts > 1 ? l->entropy / log((double)l->n_experts) : NAN) },
        { "idle", json_integer(l->n_idle) }, { "busiest", json_integer(l->busiest) },
        { "busiest_share", value_double(n > 0 ? (double)l->load[l->busiest] / n : NAN) },
        { "token_pairs", value_u64(l->n_pairs) },
        { "token_overlap", value_double(l->token_overlap) },
        { "requests", value_u64(l->n_requests) },
        { "request_overlap", value_double(l->request_overlap) },
        { "request_likeness", value_double(l->request_likeness) },
        { "tokens_weighed", value_u64(l->n_weighed) },
        { "first_share", value_double(l->first_share) },
        { "token_entropy", value_double(l->token_entropy) });
}

static const struct column columns[] = {
    { "LAYER", "layer", 5, NULL },
    { "TOKENS", "tokens", 8, NULL },
    { "EXPERTS", "experts", 7, NULL },
    { "OF", "choices", 2, NULL },
    { "VARIATION", "variation", 9, NULL, value_of_number },
    { "ENTROPY", "entropy_share", 7, NULL, value_of_share },
    { "BUSIEST", "busiest", 7, NULL },
    { "ITS SHARE", "busiest_share", 9, NULL, value_of_share },
    { "IDLE", "idle", 4, NULL },
    { "TOKENS ALIKE", "token_overlap", 12, NULL, value_of_number },
    { "REQUESTS ALIKE", "request_overlap", 14, NULL, value_of_number },
    { "LOADS ALIKE", "request_likeness", 11, NULL, value_of_number },
    { "FIRST CHOICE", "first_share", 12, NULL, value_of_share },
};

/* ------------------------------------------------------------------------- a file */

static json_t *metadata_of(const struct dmi_routing *routing, const struct analyze_options *o,
                           struct dmi_read *run)
{
    struct dmi_routing_layer l = { .size = sizeof l };
    json_t *parameters =
        json_pack("{s:o}", "top_k", o->top_k ? json_integer(o->top_k) : json_null());
    json_t *m = result_metadata("routing", FORMULA, run, parameters), *layers = json_array();
    for (uint64_t i = 0; !dmi_routing_layer(routing, i, &l); i++)
        json_array_append_new(layers, layer_row(&l));
    result_say(m, "layers", layers);
    result_say_edits_of_all(m, run);
    return m;
}

static int add_loads(struct result *result, const struct dmi_routing *routing)
{
    struct dmi_routing_layer l = { .size = sizeof l };
    for (uint64_t i = 0; !dmi_routing_layer(routing, i, &l); i++) {
        _cleanup_(text_deinit) struct text key = { 0 };
        const uint64_t n = l.n_experts;
        tensor_add_name(&key, "load", l.layer);
        if (key.failed)
            return -ENOMEM;
        result_add(result, key.data, DMI_DTYPE_U64, &n, 1);
    }
    return 0;
}

static int write_loads(struct err *err, struct result *result, const struct dmi_routing *routing)
{
    struct dmi_routing_layer l = { .size = sizeof l };
    uint64_t at = 0;
    int r = 0;
    for (uint64_t i = 0; !r && !dmi_routing_layer(routing, i, &l); i++) {
        r = result_write(err, result, l.load, l.n_experts * sizeof *l.load, at);
        at += l.n_experts * sizeof *l.load;
    }
    return r;
}

static int write_file(struct err *err, const struct analyze_options *o, struct dmi_read *run,
                      const struct dmi_routing *routing)
{
    struct result result;
    int r = result_open(err, &result, o->output, o->force, run);
    if (!r)
        r = result_begin(err, &result, metadata_of(routing, o, run));
    if (!r && add_loads(&result, routing))
        r = err_set_errno(err, ENOMEM, "cannot describe the answer");
    if (!r)
        r = result_end_header(err, &result);
    if (!r)
        r = write_loads(err, &result, routing);
    if (!r)
        r = result_keep(err, &result);
    result_deinit(&result);
    return r;
}

/* ------------------------------------------------------------------------- the command */

static bool tell_left_out(const struct dmi_routing *routing)
{
    struct dmi_routing_layer l = { .size = sizeof l };
    uint64_t n_damaged = 0, n_invalid = 0;
    for (uint64_t i = 0; !dmi_routing_layer(routing, i, &l); i++) {
        n_damaged += l.n_damaged;
        n_invalid += l.n_invalid;
    }
    if (n_invalid)
        complain("%" PRIu64 " %s no expert, and left out", n_invalid,
                 word_for(n_invalid, "choice is", "choices are"));
    if (n_damaged)
        complain("%" PRIu64 " damaged %s left out: dmi-dump verify names %s", n_damaged,
                 word_for(n_damaged, "row is", "rows are"), word_for(n_damaged, "it", "them"));
    return n_damaged || n_invalid;
}

static int print(const struct analyze_options *o, struct dmi_read *run,
                 const struct dmi_routing *routing)
{
    struct err err = { 0 };
    struct report report = { .json = o->json };
    struct dmi_routing_layer l = { .size = sizeof l };
    struct dmi_read_run about = { .size = sizeof about };
    int status = tell_left_out(routing) ? ANALYZE_FAILED : ANALYZE_OK;
    dmi_read_run(run, &about);
    report_member(&report, "run", value_text(about.path));
    report_member(&report, "uuid", value_text(about.uuid));
    report_member(&report, "top_k", o->top_k ? json_integer(o->top_k) : json_null());
    report_table(&report, "layers", columns, N_OF(columns));
    for (uint64_t i = 0; !dmi_routing_layer(routing, i, &l); i++)
        report_row(&report, layer_row(&l));
    report_table_end(&report);
    edit_words_report_run(&report, run);
    if (o->output && write_file(&err, o, run, routing)) {
        complain("%s", err.msg);
        status = ANALYZE_USAGE;
    }
    return report_end(&report, status);
}

int analyze_routing(const struct analyze_options *o)
{
    struct asked asked;
    struct dmi_routing *routing = NULL;
    char why[512] = "";
    int status = asked_open(o, &asked);
    const struct dmi_routing_options options = { .size = sizeof options,
                                                 .n_experts = o->n_experts,
                                                 .top_k = o->top_k,
                                                 .ids = o->ids,
                                                 .weights = o->weights,
                                                 .logits = o->logits };
    int r = status ? 0 : dmi_routing_open(asked.run, &options, &routing, why, sizeof why);
    if (r) {
        complain("%s", *why ? why : strerror(-r));
        status = r == -ENODATA ? ANALYZE_FAILED : ANALYZE_USAGE;
    }
    if (!status)
        status = print(o, asked.run, routing);
    dmi_routing_close(routing);
    asked_close(&asked);
    return status;
}
