/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/replay/clickhouse_schema.h"

#include "core/cleanup.h"
#include "tools/replay/clickhouse_part.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

struct schema {
    struct clickhouse_http *http;
    const struct clickhouse_url *url;
    struct text answer;
};

/* A table of the address: its name, and what it should be. */
struct wanted_table {
    char *name;
    const struct clickhouse_layout *layout;
    const char *engine;
};

static int ask(struct err *err, struct schema *s, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static int ask_number(struct err *err, struct schema *s, unsigned *out, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

static int ask_list(struct err *err, struct schema *s, const char *fmt, va_list ap)
{
    _cleanup_(freep) char *sql = NULL;
    if (vasprintf(&sql, fmt, ap) < 0)
        sql = NULL;
    return sql ? clickhouse_http_ask(err, s->http, sql, NULL, &s->answer)
               : err_set_errno(err, ENOMEM, "cannot replay");
}

static int ask(struct err *err, struct schema *s, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int r = ask_list(err, s, fmt, ap);
    va_end(ap);
    return r;
}

/* Asks for one number, in a line. Return: as ask(). */
static int ask_number(struct err *err, struct schema *s, unsigned *out, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int r = ask_list(err, s, fmt, ap);
    va_end(ap);
    char *end = s->answer.data;
    unsigned long v = r || !s->answer.n || *end < '0' || *end > '9' ? 0 : strtoul(end, &end, 10);
    *out = (unsigned)v;
    if (r || (s->answer.n && end != s->answer.data && !strcmp(end, "\n") && v <= UINT_MAX))
        return r;
    return err_set(err, -EBADMSG, "%s: the server's answer is no number where one was asked for",
                   s->url->server);
}

/* ------------------------------------------------------------------------- one table */

static int create(struct err *err, struct schema *s, const struct wanted_table *t)
{
    _cleanup_(text_deinit) struct text list = { 0 };
    for (size_t i = 0; i < t->layout->n_columns; i++)
        text_printf(&list, "%s`%s` %s", i ? ", " : "", t->layout->columns[i].name,
                    clickhouse_type(&t->layout->columns[i]));
    if (list.failed)
        return err_set_errno(err, ENOMEM, "cannot replay");
    return ask(err, s, "CREATE TABLE IF NOT EXISTS `%s`.`%s` (%s) ENGINE = %s", s->url->database,
               t->name, list.data, t->engine);
}

/* Whether the list of columns has one that begins so; each stands between two line ends. */
static bool has(const struct text *list, const char *fmt, const char *name, const char *type)
{
    char line[128];
    snprintf(line, sizeof line, fmt, name, type);
    return strstr(list->data, line) != NULL;
}

/* A column that a later version of the schema brought is added; any other must be there. */
static int check_column(struct err *err, struct schema *s, const struct wanted_table *t,
                        const struct text *list, const struct clickhouse_column *column,
                        unsigned version)
{
    const char *type = clickhouse_type(column);
    if (has(list, "\n%s\t%s\n", column->name, type))
        return 0;
    if (!has(list, "\n%s\t", column->name, "") && column->since > version)
        return ask(err, s, "ALTER TABLE `%s`.`%s` ADD COLUMN `%s` %s", s->url->database, t->name,
                   column->name, type);
    return err_set(err, -EEXIST,
                   "the table %s.%s has no column '%s' of type %s: name another one with ?table=",
                   s->url->database, t->name, column->name, type);
}

static int list_columns(struct err *err, struct schema *s, const char *table, struct text *out)
{
    int r = ask(err, s,
                "SELECT name, type FROM system.columns WHERE database = '%s' AND table = '%s' "
                "FORMAT TabSeparated",
                s->url->database, table);
    text_add(out, "\n", 1);
    text_add(out, s->answer.n ? s->answer.data : "", r ? 0 : s->answer.n);
    return !r && out->failed ? err_set_errno(err, ENOMEM, "cannot replay") : r;
}

/* @version: of the schema that it has; 0: nothing says that a dmi-replay created it. */
static int make_table(struct err *err, struct schema *s, const struct wanted_table *t,
                      unsigned version)
{
    _cleanup_(text_deinit) struct text list = { 0 };
    int r = list_columns(err, s, t->name, &list);
    if (!r && list.n == 1)
        return create(err, s, t);
    if (!r && !version && t->layout->version)
        return err_set(err, -EEXIST,
                       "the table %s.%s is there already, and dmi_schema does not know it: name "
                       "another one with ?table=",
                       s->url->database, t->name);
    for (size_t i = 0; !r && i < t->layout->n_columns; i++)
        r = check_column(err, s, t, &list, &t->layout->columns[i], version);
    return r;
}

/* ------------------------------------------------------------------------- over a cluster */

/* Each server has the rows of its shard in NAME_local, and NAME, which is all of them. */
static int make_distributed(struct err *err, struct schema *s, const char *name,
                            const struct clickhouse_layout *layout, unsigned version)
{
    const char *database = s->url->database;
    _cleanup_(freep) char *local = NULL, *engine = NULL;
    if (asprintf(&local, "%s_local", name) < 0)
        local = NULL;
    if (asprintf(&engine, "Distributed(`%s`, `%s`, `%s_local`, %s)", s->url->cluster, database,
                 name, layout->shard) < 0)
        engine = NULL;
    if (!local || !engine)
        return err_set_errno(err, ENOMEM, "cannot replay");
    const struct wanted_table part = { local, layout, layout->engine };
    const struct wanted_table all = { (char *)(uintptr_t)name, layout, engine };
    int r = make_table(err, s, &part, version);
    return r ? r : make_table(err, s, &all, version);
}

static int make_records(struct err *err, struct schema *s, const char *name,
                        const struct clickhouse_layout *layout, unsigned version)
{
    const struct wanted_table one = { (char *)(uintptr_t)name, layout, layout->engine };
    return s->url->cluster ? make_distributed(err, s, name, layout, version)
                           : make_table(err, s, &one, version);
}

/* The cluster is one of the server's own configuration. */
static int check_cluster(struct err *err, struct schema *s)
{
    unsigned n;
    int r = ask_number(err, s, &n, "SELECT count() FROM system.clusters WHERE cluster = '%s'",
                       s->url->cluster);
    if (r || n)
        return r;
    return err_set(err, -ENOENT, "%s has no cluster %s (system.clusters, remote_servers)",
                   s->url->server, s->url->cluster);
}

/* ------------------------------------------------------------------------- views */

/* Of true values: a stored one is the true one times the scale. */
#define NORMS                                                                                      \
    "SELECT run, site, layer, count() AS parts, sum(n) AS elements, sqrt(sum(squares)) AS norm, "  \
    "sum(total) / sum(n) AS mean, max(most) AS greatest, sum(odd) AS not_finite FROM "             \
    "(SELECT run, site, layer, elements AS n, not_finite AS odd, if(scale = 0, 1, scale) AS by, "  \
    "norm * norm / by / by AS squares, mean * (elements - not_finite) / by AS total, "             \
    "greatest / abs(by) AS most FROM `%s`.`%s` FINAL) GROUP BY run, site, layer"

/* A position that was computed again is the last step's. */
#define TOKENS                                                                                     \
    "SELECT run, request, token, argMax(step, step_sequence) AS step, "                            \
    "argMax(phase, step_sequence) AS phase, "                                                      \
    "toDateTime(intDiv(argMax(time_ns, step_sequence), 1000000000)) AS time, "                     \
    "uniq(site, layer) AS tensors FROM "                                                           \
    "(SELECT run, request, site, layer, step, step_sequence, phase, time_ns, "                     \
    "position + arrayJoin(range(rows)) AS token FROM `%s`.`%s` FINAL "                             \
    "WHERE position >= 0 AND rejected = 0 AND superseded = 0) GROUP BY run, request, token"

static int make_view(struct err *err, struct schema *s, const char *name, const char *query,
                     bool anew)
{
    const char *database = s->url->database, *table = s->url->table;
    int r = anew ? ask(err, s, "DROP TABLE IF EXISTS `%s`.`%s_%s`", database, table, name) : 0;
    return r ? r
             : ask(err, s, "CREATE VIEW IF NOT EXISTS `%s`.`%s_%s` AS %s", database, table, name,
                   query);
}

static int make_views(struct err *err, struct schema *s, bool anew)
{
    _cleanup_(freep) char *norms = NULL, *tokens = NULL;
    if (asprintf(&norms, NORMS, s->url->database, s->url->table) < 0)
        norms = NULL;
    if (asprintf(&tokens, TOKENS, s->url->database, s->url->table) < 0)
        tokens = NULL;
    if (!norms || !tokens)
        return err_set_errno(err, ENOMEM, "cannot replay");
    int r = make_view(err, s, "norms", norms, anew);
    return r ? r : make_view(err, s, "tokens", tokens, anew);
}

/* ------------------------------------------------------------------------- all of it */

/* A user without the right to make a database may use one that is there. */
static int make_database(struct err *err, struct schema *s)
{
    unsigned n;
    int r = ask_number(err, s, &n, "SELECT count() FROM system.databases WHERE name = '%s'",
                       s->url->database);
    return r || n ? r : ask(err, s, "CREATE DATABASE IF NOT EXISTS `%s`", s->url->database);
}

static int read_version(struct err *err, struct schema *s, unsigned *version)
{
    const char *database = s->url->database;
    int r = ask(err, s,
                "CREATE TABLE IF NOT EXISTS `%s`.dmi_schema (name String, version UInt32) "
                "ENGINE = ReplacingMergeTree ORDER BY (name, version)",
                database);
    *version = 0;
    if (!r)
        r = ask_number(err, s, version,
                       "SELECT max(version) FROM `%s`.dmi_schema WHERE name = '%s'", database,
                       s->url->table);
    if (r || *version <= clickhouse_dmi.version)
        return r;
    return err_set(err, -ENOTSUP,
                   "the table %s.%s has schema version %u, of a newer dmi-replay; this one knows "
                   "versions up to %u",
                   database, s->url->table, *version, clickhouse_dmi.version);
}

static int write_version(struct err *err, struct schema *s)
{
    return ask(err, s, "INSERT INTO `%s`.dmi_schema (name, version) VALUES ('%s', %u)",
               s->url->database, s->url->table, clickhouse_dmi.version);
}

/* A table is promised before it is created, so that after any kill dmi_schema knows one that is there. */
static int promise(struct err *err, struct schema *s, unsigned *version)
{
    _cleanup_(text_deinit) struct text list = { 0 };
    int r = *version ? 0 : list_columns(err, s, s->url->table, &list);
    if (r || *version || list.n > 1)
        return r;
    *version = clickhouse_dmi.version;
    return write_version(err, s);
}

static int make_dmi(struct err *err, struct schema *s)
{
    _cleanup_(freep) char *facts = NULL;
    unsigned version;
    int r = read_version(err, s, &version);
    if (!r)
        r = promise(err, s, &version);
    if (!r)
        r = make_records(err, s, s->url->table, &clickhouse_dmi, version);
    if (!r && asprintf(&facts, "%s_facts", s->url->table) < 0) {
        facts = NULL;
        return err_set_errno(err, ENOMEM, "cannot replay");
    }
    if (!r)
        r = make_records(err, s, facts, &clickhouse_facts, version);
    if (!r)
        r = make_views(err, s, version < clickhouse_dmi.version);
    return r || version == clickhouse_dmi.version ? r : write_version(err, s);
}

static int make_on(struct err *err, struct clickhouse_http *http, const struct clickhouse_url *url)
{
    struct schema s = { .http = http, .url = url };
    const struct wanted_table theirs = { url->table, &clickhouse_dmilib, clickhouse_dmilib.engine };
    int r = url->cluster ? check_cluster(err, &s) : 0;
    if (!r)
        r = make_database(err, &s);
    if (!r)
        r = url->dmilib ? make_table(err, &s, &theirs, 0) : make_dmi(err, &s);
    text_deinit(&s.answer);
    return r;
}

/* The same on another server of the cluster. */
static int make_on_other(struct err *err, const struct clickhouse_url *url, char *server)
{
    struct clickhouse_url other = *url;
    struct clickhouse_http *http = NULL;
    other.server = server;
    int r = clickhouse_http_new(err, &other, &http);
    if (!r)
        r = make_on(err, http, &other);
    clickhouse_http_free(http);
    return r;
}

int clickhouse_schema_make(struct err *err, struct clickhouse_http *http,
                           const struct clickhouse_url *url)
{
    int r = make_on(err, http, url);
    for (size_t i = 0; !r && i < url->n_others; i++)
        r = make_on_other(err, url, url->others[i]);
    return r;
}
