/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/analyze/stats.h"

#include "core/clock.h"
#include "core/words.h"
#include "read/handle.h"
#include "read/value.h"
#include "tools/analyze/asked.h"
#include "tools/analyze/cells.h"
#include "tools/common/edit_words.h"
#include "tools/common/select.h"
#include "tools/common/stop.h"

#include <inttypes.h>
#include <string.h>

#define LEAST_PAUSE_NS 1000000000u /* between two answers about a growing run */

/* ------------------------------------------------------------------------- the table of layers */

static void show_median(struct text *to, const json_t *norm)
{
    value_of_number(to, json_object_get(norm, "median"));
}

static void show_peak(struct text *to, const json_t *max)
{
    value_of_number(to, json_object_get(max, "value"));
}

static void show_channel(struct text *to, const json_t *max)
{
    value_of_number(to, json_object_get(max, "channel"));
}

static void show_token(struct text *to, const json_t *max)
{
    value_of_number(to, json_object_get(max, "token"));
}

static const struct column columns[] = {
    { "SITE", "site", -14, NULL },
    { "LAYER", "layer", 5, NULL },
    { "ROWS", "rows", 7, NULL },
    { "NORM", "norm", 9, NULL, show_median },
    { "MEAN", "mean", 10, NULL, value_of_number },
    { "SD", "sd", 9, NULL, value_of_number },
    { "KURTOSIS", "kurtosis", 9, NULL, value_of_number },
    { "MAX", "max", 9, NULL, show_peak },
    { "CHANNEL", "max", 7, NULL, show_channel },
    { "TOKEN", "max", 6, NULL, show_token },
    { "ZERO", "share_zero", 6, NULL, value_of_share },
    { "NONFINITE", "share_nonfinite", 9, NULL, value_of_share },
    { "OUTLIERS", "outlier_channels", 8, NULL, value_of_number },
};

static void by_layer(struct report *report, const struct stats_answer *a)
{
    struct dmi_stats_layer l = { .size = sizeof l };
    report_table(report, "layers", columns, N_OF(columns));
    for (uint64_t i = 0; !dmi_stats_layer(a->stats, i, &l); i++)
        if (l.n_rows || report->json)
            report_row(report, stats_layer_row(a, i));
    report_table_end(report);
}

/* ------------------------------------------------------------------------- channels that stand out */

static const struct column outlier_columns[] = {
    { "OUTLIERS OF", "site", -14, NULL },      { "CHANNEL", "channel", 7, NULL },
    { "LAYERS", "layers", 6, NULL },           { "OF", "of_layers", 4, NULL },
    { "FURTHEST", "furthest_layer", 8, NULL }, { "SCORE", "score", 9, NULL, value_of_number },
};

#define OUTLIERS_SHOWN 10 /* of a site, in text */

static void put_outliers(struct report *report, const struct stats_answer *a)
{
    struct dmi_stats_outlier o = { .size = sizeof o };
    const char *site = "";
    uint64_t of_site = 0, n_more = 0;
    if (dmi_stats_outlier(a->stats, 0, &o) && !report->json)
        return;
    report_line(report, "%s", "");
    report_table(report, "outlier_channels", outlier_columns, N_OF(outlier_columns));
    for (uint64_t i = 0; !dmi_stats_outlier(a->stats, i, &o); i++) {
        of_site = strcmp(site, o.name) ? 1 : of_site + 1;
        site = o.name;
        if (report->json || of_site <= OUTLIERS_SHOWN)
            report_row(report, stats_outlier_row(&o));
        else
            n_more++;
    }
    report_table_end(report);
    if (n_more)
        report_line(report, "and %" PRIu64 " more: --json has all", n_more);
}

/* ------------------------------------------------------------------------- the command */

/* Layers without numbers, damage, and no row at all. Return: whether there is any. */
static bool tell_left_out(const struct stats_answer *a)
{
    struct dmi_stats_layer l = { .size = sizeof l };
    uint64_t n_damaged = 0, n_rows = 0;
    bool any = false;
    for (uint64_t i = 0; !dmi_stats_layer(a->stats, i, &l); i++) {
        n_damaged += l.n_damaged;
        n_rows += l.n_rows + l.n_skipped;
        if (!l.left_out)
            continue;
        any = true;
        if (l.layer < 0)
            complain("%s is left out: %s", l.name, l.left_out);
        else
            complain("%s, layer %d, is left out: %s", l.name, l.layer, l.left_out);
    }
    if (n_damaged)
        complain("%" PRIu64 " damaged %s left out: dmi-dump verify names %s", n_damaged,
                 word_for(n_damaged, "row is", "rows are"), word_for(n_damaged, "it", "them"));
    bool nothing = !any && !n_damaged && !n_rows;
    bool unjudged = !nothing && select_tell_unjudged(&a->run->view.requests, &a->run->select);
    if (nothing)
        complain("nothing was captured with that site, layer, request or tokens (dmi-dump list)");
    return any || n_damaged || nothing || unjudged;
}

static void put_facts(struct report *report, const struct stats_answer *a)
{
    struct dmi_read_run run = { .size = sizeof run };
    dmi_read_run(a->run, &run);
    report_member(report, "run", value_text(run.path));
    report_member(report, "uuid", value_text(run.uuid));
    report_member(report, "skip_first", json_integer(a->skip_first));
    report_member(report, "quantile_error", value_double(DMI_STATS_QUANTILE_ERROR));
}

static int put(struct err *err, struct report *report, const struct analyze_options *o,
               const struct stats_answer *a)
{
    int r = 0;
    put_facts(report, a);
    if (o->by == BY_TOKEN)
        r = stats_by_token(err, report, a);
    else if (o->by == BY_CHANNEL)
        r = stats_by_channel(err, report, a);
    else
        by_layer(report, a);
    if (!r)
        put_outliers(report, a);
    if (!r)
        edit_words_report_run(report, a->run);
    return r;
}

static int print(const struct analyze_options *o, const struct stats_answer *a)
{
    struct err err = { 0 };
    struct report report = { .json = o->json };
    int status = tell_left_out(a) ? ANALYZE_FAILED : ANALYZE_OK;
    int r = put(&err, &report, o, a);
    if (!r && o->output)
        r = stats_write(&err, a, o->output, o->force);
    if (r) {
        complain("%s", err.msg);
        status = ANALYZE_USAGE;
    }
    return report_end(&report, status);
}

static int answer(const struct analyze_options *o, struct stats_answer *a)
{
    struct err err = { 0 };
    char why[512] = "";
    bool rows = o->by == BY_TOKEN || o->output;
    if (rows && stats_rows_init(&err, &a->rows, a->run)) {
        complain("%s", err.msg);
        return ANALYZE_USAGE;
    }
    const struct dmi_stats_options options = { .size = sizeof options,
                                               .n_threads = o->n_threads,
                                               .skip_first = a->skip_first,
                                               .take = rows ? stats_rows_take : NULL,
                                               .arg = &a->rows };
    int r = dmi_stats_open(a->run, &options, &a->stats, why, sizeof why);
    if (r) {
        complain("%s", *why ? why : strerror(-r));
        return ANALYZE_USAGE;
    }
    return print(o, a);
}

static uint64_t n_records(const struct asked *asked)
{
    struct dmi_read_run about = { .size = sizeof about };
    return dmi_read_run(asked->run, &about) ? 0 : about.n_records;
}

/* Waits until the run has more than @n records, or has ended, or the user stops it. Return: whether it has more; -1: what is wrong is said. */
static int wait_for_more(const struct asked *asked, uint64_t n, uint64_t pause_ns)
{
    while (n_records(asked) == n && asked_goes_on(asked) && !stop_asked()) {
        stop_sleep(pause_ns);
        if (dmi_read_refresh(asked->run)) {
            complain("%s", dmi_read_error(asked->run));
            return -1;
        }
    }
    return n_records(asked) != n && !stop_asked();
}

/* One answer, whose time is at most a tenth of that to the next one. A file that we wrote is written again. */
static int answer_once(const struct analyze_options *o, struct stats_answer *a, uint64_t *pause_ns)
{
    uint64_t began = clock_mono_ns();
    int status = answer(o, a);
    uint64_t took = clock_mono_ns() - began;
    *pause_ns = 9 * took > LEAST_PAUSE_NS ? 9 * took : LEAST_PAUSE_NS;
    dmi_stats_close(a->stats);
    a->stats = NULL;
    stats_rows_deinit(&a->rows);
    fflush(stdout);
    return status;
}

/* Until the run has ended, the user stops it, or the reader of what we print has gone. */
static int follow(const struct analyze_options *options, const struct asked *asked,
                  struct stats_answer *a)
{
    struct analyze_options o = *options;
    uint64_t pause_ns = LEAST_PAUSE_NS;
    stop_install();
    int status = ANALYZE_OK, more = n_records(asked) ? 1 : wait_for_more(asked, 0, pause_ns);
    while (more > 0 && status != ANALYZE_USAGE && !ferror(stdout)) {
        uint64_t n = n_records(asked);
        status = answer_once(&o, a, &pause_ns);
        o.force = true;
        more = wait_for_more(asked, n, pause_ns);
    }
    return more < 0 ? ANALYZE_USAGE : status;
}

int analyze_stats(const struct analyze_options *o)
{
    struct asked asked;
    struct stats_answer a = { .rows = { .fd = -1 }, .skip_first = o->skip_first };
    int status = asked_open(o, &asked);
    a.run = asked.run;
    if (!status)
        status = o->follow ? follow(o, &asked, &a) : answer(o, &a);
    dmi_stats_close(a.stats);
    stats_rows_deinit(&a.rows);
    asked_close(&asked);
    return status;
}
