/* SPDX-License-Identifier: Apache-2.0 */
/*
 * --to clickhouse://HOST/: rows of tables on a ClickHouse server, in batches of at most CLICKHOUSE_BATCH bytes. A batch is
 * taken once the server has answered it with 200; what is sent again has the key of what was sent before.
 */
#include "tools/replay/sink.h"

#include "core/cleanup.h"
#include "tools/common/clickhouse_http.h"
#include "tools/common/say.h"
#include "tools/replay/clickhouse_part.h"
#include "tools/replay/clickhouse_schema.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define CLICKHOUSE_BATCH (16u << 20)
#define MOST_OF_A_ROW    (1u << 16) /* beside its payload */
#define FULL             (CLICKHOUSE_BATCH - CLICKHOUSE_PART - MOST_OF_A_ROW)

/* Rows that wait for being sent. */
struct waiting_rows {
    const struct clickhouse_layout *layout;
    char *insert; /* the statement */
    struct text rows;
};

struct clickhouse_sink {
    struct sink sink;
    struct clickhouse_url url;
    struct clickhouse_http *http;
    struct waiting_rows records, facts;
    bool failed; /* nothing more is sent */
};

/* ------------------------------------------------------------------------- batches */

static int batch_init(struct err *err, struct waiting_rows *b,
                      const struct clickhouse_layout *layout, const struct clickhouse_url *url,
                      const char *suffix)
{
    struct text t = { 0 };
    b->layout = layout;
    text_printf(&t, "INSERT INTO `%s`.`%s%s` (", url->database, url->table, suffix);
    for (size_t i = 0; i < layout->n_columns; i++)
        text_printf(&t, "%s`%s`", i ? ", " : "", layout->columns[i].name);
    text_printf(&t, ") FORMAT RowBinary");
    b->insert = t.data;
    return t.failed ? err_set_errno(err, ENOMEM, "cannot replay") : 0;
}

static int batch_send(struct err *err, struct clickhouse_sink *s, struct waiting_rows *b)
{
    if (b->rows.failed)
        return err_set_errno(err, ENOMEM, "cannot replay");
    int r = b->rows.n ? clickhouse_http_ask(err, s->http, b->insert, &b->rows, NULL) : 0;
    s->failed |= r != 0;
    if (!r)
        b->rows.n = 0;
    return r;
}

static int batch_send_full(struct err *err, struct clickhouse_sink *s, struct waiting_rows *b)
{
    return b->rows.n > FULL || b->rows.failed ? batch_send(err, s, b) : 0;
}

static void batch_deinit(struct waiting_rows *b)
{
    free(b->insert);
    text_deinit(&b->rows);
}

/* ------------------------------------------------------------------------- the sink */

static void free_sink(struct clickhouse_sink *s)
{
    batch_deinit(&s->records);
    batch_deinit(&s->facts);
    clickhouse_http_free(s->http);
    clickhouse_url_deinit(&s->url);
    json_decref(s->sink.failed);
    free(s);
}

/* Each run of which rows were taken has one there. */
static int check_taken(struct err *err, struct clickhouse_sink *s, const char *const *taken)
{
    _cleanup_(text_deinit) struct text sql = { 0 }, answer = { 0 };
    int r = 0;
    for (size_t i = 0; !r && !s->url.dmilib && taken[i]; i++) {
        sql.n = 0;
        text_printf(&sql, "SELECT run FROM `%s`.`%s` WHERE run = '%s' LIMIT 1", s->url.database,
                    s->url.table, taken[i]);
        r = sql.failed ? err_set_errno(err, ENOMEM, "cannot replay")
                       : clickhouse_http_ask(err, s->http, sql.data, NULL, &answer);
        if (!r &&
            (answer.n != strlen(taken[i]) + 1 || memcmp(answer.data, taken[i], strlen(taken[i]))))
            r = err_set(err, -EINVAL,
                        "the table %s.%s has nothing of run %s, of which the cursor says that rows "
                        "were taken: remove the cursor to begin again",
                        s->url.database, s->url.table, taken[i]);
    }
    return r;
}

static int clickhouse_check(struct err *err, const struct sink_options *options)
{
    struct clickhouse_sink *s = calloc(1, sizeof *s);
    if (!s)
        return err_set_errno(err, ENOMEM, "cannot replay");
    int r = clickhouse_url_parse(err, options->where, &s->url);
    if (!r)
        r = clickhouse_http_new(err, &s->url, &s->http);
    if (!r)
        r = check_taken(err, s, options->taken);
    free_sink(s);
    return r;
}

static int begin(struct err *err, struct clickhouse_sink *s, const struct sink_options *options)
{
    int r = clickhouse_url_parse(err, options->where, &s->url);
    if (!r && s->url.run)
        r = err_set(err, -EINVAL, "--to clickhouse: run= is for dmi-dump --from");
    if (!r)
        r = clickhouse_http_new(err, &s->url, &s->http);
    if (!r)
        r = clickhouse_schema_make(err, s->http, &s->url);
    if (!r && options->has_cursor)
        r = check_taken(err, s, options->taken);
    if (!r)
        r = batch_init(err, &s->records, s->url.dmilib ? &clickhouse_dmilib : &clickhouse_dmi,
                       &s->url, "");
    if (!r)
        r = batch_init(err, &s->facts, &clickhouse_facts, &s->url, "_facts");
    if (!r && s->url.dmilib)
        complain("layout=dmilib has no key: what is sent again is there twice (at least once)");
    return r;
}

static int clickhouse_open(struct err *err, const struct sink_options *options, struct sink **out)
{
    struct clickhouse_sink *s = calloc(1, sizeof *s);
    if (!s)
        return err_set_errno(err, ENOMEM, "cannot replay");
    s->sink.kind = &sink_clickhouse;
    int r = begin(err, s, options);
    if (r)
        free_sink(s);
    else
        *out = &s->sink;
    return r;
}

static int clickhouse_take(struct err *err, struct sink *sink, const struct item *item)
{
    struct clickhouse_sink *s = (struct clickhouse_sink *)sink;
    struct clickhouse_place at = { 0 };
    int r = 0;
    if (item->kind == ITEM_RECORD) {
        while (!r && clickhouse_part_next(s->records.layout, item, &at, &s->records.rows))
            r = batch_send_full(err, s, &s->records);
        return r;
    }
    if (s->url.dmilib)
        return 0;
    clickhouse_facts_add(item, &s->facts.rows);
    return batch_send_full(err, s, &s->facts);
}

static int clickhouse_settle(struct err *err, struct sink *sink, struct sink_mark *mark)
{
    struct clickhouse_sink *s = (struct clickhouse_sink *)sink;
    int r = batch_send(err, s, &s->records);
    *mark = (struct sink_mark){ 0 };
    return r ? r : batch_send(err, s, &s->facts);
}

/* What came after the last settle(): that a replay was stopped. */
static int clickhouse_close(struct err *err, struct sink *sink)
{
    struct clickhouse_sink *s = (struct clickhouse_sink *)sink;
    struct sink_mark mark;
    int r = s->failed ? 0 : clickhouse_settle(err, sink, &mark);
    free_sink(s);
    return r == -EINTR ? 0 : r;
}

const struct sink_kind sink_clickhouse = {
    .prefix = "clickhouse://",
    .where = "HOST/",
    .what = "tables on a ClickHouse server (docs/clickhouse.md)",
    .open = clickhouse_open,
    .take = clickhouse_take,
    .settle = clickhouse_settle,
    .check = clickhouse_check,
    .close = clickhouse_close,
};
