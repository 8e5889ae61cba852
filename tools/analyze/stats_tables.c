/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-analyze stats --by token and --by channel. */
#include "tools/analyze/stats.h"

#include "core/cleanup.h"
#include "core/err.h"
#include "read/value.h"
#include "tools/analyze/cells.h"

#include <errno.h>
#include <stdlib.h>

#define ROWS_AT_ONCE 256

/* ------------------------------------------------------------------------- tokens */

static const struct column token_columns[] = {
    { "SITE", "site", -14, NULL },
    { "LAYER", "layer", 5, NULL },
    { "REQUEST", "request", -12, NULL },
    { "TOKEN", "token", 6, NULL },
    { "NORM", "norm", 10, NULL, value_of_number },
    { "MEAN", "mean", 10, NULL, value_of_number },
    { "MAX", "max", 10, NULL, value_of_number },
    { "NONFINITE", "nonfinite", 9, NULL },
};

static json_t *token_row(const struct dmi_read_tensor *t, const char *site, int64_t token,
                         const struct dmi_stats_row *row)
{
    return VALUE_OBJECT(
        { "site", value_text(site) }, { "layer", value_layer(t->layer) },
        { "request", t->request ? value_bytes(t->request, t->request_bytes) : json_null() },
        { "token", json_integer(token) }, { "norm", value_double(row->norm) },
        { "mean", value_double(row->mean) }, { "max", value_double(row->peak) },
        { "nonfinite", value_u64(row->n_bad) });
}

/* Some rows of a tensor: those that were left out, or are damaged, are not there. */
static int put_rows(struct err *err, struct report *report, const struct stats_answer *a,
                    uint64_t tensor, uint64_t first, uint64_t n)
{
    struct dmi_read_tensor t = { .size = sizeof t };
    struct dmi_read_site site = { .size = sizeof site };
    struct dmi_read_row places[ROWS_AT_ONCE];
    struct dmi_stats_row rows[ROWS_AT_ONCE];
    TRY(stats_rows_read(err, &a->rows, tensor, first, rows, n));
    if (dmi_read_tensor(a->run, tensor, &t) || dmi_read_site(a->run, t.site, &site) ||
        dmi_read_rows(a->run, tensor, first, n, NULL, 0, places, sizeof *places))
        return err_set(err, -EIO, "%s", dmi_read_error(a->run));
    for (uint64_t i = 0; i < n; i++) {
        int64_t token = places[i].position < 0 ? (int64_t)(first + i) : places[i].position;
        bool there = token >= a->skip_first && (rows[i].norm == rows[i].norm || rows[i].n_bad);
        if (there)
            report_row(report, token_row(&t, site.name, token, &rows[i]));
    }
    return 0;
}

int stats_by_token(struct err *err, struct report *report, const struct stats_answer *a)
{
    struct dmi_read_tensor t = { .size = sizeof t };
    int r = 0;
    report_table(report, "tokens", token_columns, N_OF(token_columns));
    for (uint64_t i = 0; !r && !dmi_read_tensor(a->run, i, &t); i++)
        for (uint64_t at = 0, n; !r && stats_has(a, i) && at < t.n_rows; at += n) {
            n = t.n_rows - at < ROWS_AT_ONCE ? t.n_rows - at : ROWS_AT_ONCE;
            r = put_rows(err, report, a, i, at, n);
        }
    report_table_end(report);
    return r;
}

/* ------------------------------------------------------------------------- channels */

static const struct column channel_columns[] = {
    { "SITE", "site", -14, NULL },
    { "LAYER", "layer", 5, NULL },
    { "CHANNEL", "channel", 7, NULL },
    { "MEAN", "mean", 10, NULL, value_of_number },
    { "SD", "sd", 10, NULL, value_of_number },
    { "MAX", "max", 10, NULL, value_of_number },
    { "SCORE", "score", 9, NULL, value_of_number },
    { "NONFINITE", "nonfinite", 9, NULL },
};

static json_t *channel_row(const struct dmi_stats_layer *l, uint64_t channel,
                           const struct dmi_stats_channel *c)
{
    return VALUE_OBJECT({ "site", value_text(l->name) }, { "layer", value_layer(l->layer) },
                        { "channel", value_u64(channel) }, { "mean", value_double(c->mean) },
                        { "sd", value_double(c->sd) }, { "max", value_double(c->peak) },
                        { "score", value_double(c->score) }, { "nonfinite", value_u64(c->n_bad) });
}

int stats_by_channel(struct err *err, struct report *report, const struct stats_answer *a)
{
    struct dmi_stats_layer l = { .size = sizeof l };
    report_table(report, "channels", channel_columns, N_OF(channel_columns));
    for (uint64_t i = 0; !dmi_stats_layer(a->stats, i, &l); i++) {
        _cleanup_(freep) struct dmi_stats_channel *all = calloc(l.width + 1, sizeof *all);
        if (!all || dmi_stats_channels(a->stats, i, all, l.width) < 0)
            return err_set_errno(err, ENOMEM, "cannot list channels");
        for (uint64_t c = 0; c < l.width && !l.left_out; c++)
            report_row(report, channel_row(&l, c, &all[c]));
    }
    report_table_end(report);
    return 0;
}
