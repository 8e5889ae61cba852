/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/dump/fetch.h"

#include "core/cleanup.h"
#include "tools/common/say.h"
#include "tools/dump/fetch_private.h"

#include <errno.h>
#include <ftw.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_ANSWER (2ull << 30) /* of a chunk's rows */
#define MOST_NAMED  300u         /* bytes of the runs that are named */

int fetch_ask(struct err *err, struct fetched *x, const char *fmt, ...)
{
    _cleanup_(freep) char *sql = NULL;
    va_list ap;
    va_start(ap, fmt);
    int n = vasprintf(&sql, fmt, ap);
    va_end(ap);
    if (n < 0) {
        sql = NULL;
        return err_set_errno(err, ENOMEM, "cannot fetch a run");
    }
    int r = clickhouse_http_ask(err, x->http, sql, NULL, &x->answer);
    if (!r && x->answer.failed)
        r = err_set_errno(err, ENOMEM, "cannot fetch a run");
    return r;
}

/* ------------------------------------------------------------------------- which run */

/* The only one of the table, or the one that the address names. */
static int choose_run(struct err *err, struct fetched *x)
{
    if (x->url.run)
        return 0;
    int r = fetch_ask(err, x,
                      "SELECT DISTINCT run FROM `%s`.`%s_facts` WHERE type = 'run' ORDER BY run",
                      x->url.database, x->url.table);
    if (r)
        return r;
    char *end = x->answer.n ? strchr(x->answer.data, '\n') : NULL;
    if (!end)
        return err_set(err, -ENOENT, "there is no run in %s.%s", x->url.database, x->url.table);
    if (end[1]) {
        for (char *c = x->answer.data; *c; c++)
            *c = *c == '\n' ? ' ' : *c;
        return err_set(err, -ENOTUNIQ, "%s.%s has several runs, name one of them with ?run=: %.*s",
                       x->url.database, x->url.table, MOST_NAMED, x->answer.data);
    }
    x->url.run = strndup(x->answer.data, (size_t)(end - x->answer.data));
    return x->url.run ? 0 : err_set_errno(err, ENOMEM, "cannot fetch a run");
}

/* ------------------------------------------------------------------------- its facts */

/* A line of JSON each. Return: an array; NULL with a sentence in @err. */
static json_t *parse_lines(struct err *err, const struct text *lines)
{
    json_t *all = json_array();
    const char *at = lines->n ? lines->data : "";
    while (all && *at) {
        const char *end = at + strcspn(at, "\n");
        json_t *one = json_loadb(at, (size_t)(end - at), JSON_ALLOW_NUL, NULL);
        if (!one || json_array_append_new(all, one)) {
            json_decref(all);
            err_set(err, -EBADMSG, "a fact of the table is no JSON object");
            return NULL;
        }
        at = *end ? end + 1 : end;
    }
    if (!all)
        err_set_errno(err, ENOMEM, "cannot fetch a run");
    return all;
}

static json_t *ask_facts(struct err *err, struct fetched *x, const char *types)
{
    int r = fetch_ask(err, x,
                      "SELECT facts FROM `%s`.`%s_facts` FINAL WHERE run = '%s' AND type IN (%s) "
                      "FORMAT TabSeparatedRaw",
                      x->url.database, x->url.table, x->url.run, types);
    return r ? NULL : parse_lines(err, &x->answer);
}

/* Of several (a replay that was resumed says it again) the sites are the same. */
static int ask_about(struct err *err, struct fetched *x)
{
    json_t *facts = ask_facts(err, x, "'run'");
    if (!facts)
        return err->code;
    x->about = json_incref(json_array_get(facts, 0));
    json_decref(facts);
    return x->about ? 0
                    : err_set(err, -ENOENT, "there is no run %s in %s.%s", x->url.run,
                              x->url.database, x->url.table);
}

static int ask_steps(struct err *err, struct fetched *x)
{
    json_t *facts = ask_facts(err, x, "'step', 'outcome'");
    int r = facts ? fetch_steps(err, x, facts) : err->code;
    json_decref(facts);
    return r;
}

/* ------------------------------------------------------------------------- its records */

static int ask_chunk(struct err *err, struct fetched *x, uint64_t chunk)
{
    int r = fetch_ask(
        err, x,
        "SELECT record, part, site, layer, occurrence, dtype, shape, forward, launch, "
        "step_sequence, time_ns, device, first_row, rows, payload FROM `%s`.`%s` FINAL WHERE run = "
        "'%s' AND chunk = %" PRIu64 " AND rejected = 0 AND superseded = 0 ORDER BY record, part "
        "FORMAT RowBinary",
        x->url.database, x->url.table, x->url.run, chunk);
    return r ? r : fetch_rows(err, x);
}

static int ask_records(struct err *err, struct fetched *x)
{
    _cleanup_(text_deinit) struct text chunks = { 0 };
    int r =
        fetch_ask(err, x, "SELECT DISTINCT chunk FROM `%s`.`%s` WHERE run = '%s' ORDER BY chunk",
                  x->url.database, x->url.table, x->url.run);
    text_add(&chunks, x->answer.n ? x->answer.data : "", r ? 0 : x->answer.n);
    if (!r && chunks.failed)
        r = err_set_errno(err, ENOMEM, "cannot fetch a run");
    char *rest = chunks.data;
    while (!r && rest && *rest) {
        uint64_t chunk = strtoull(rest, &rest, 10);
        r = ask_chunk(err, x, chunk);
        rest += strspn(rest, "\n");
    }
    return r;
}

/* ------------------------------------------------------------------------- all of it */

static void fetched_deinit(struct fetched *x)
{
    if (x->run)
        run_close(x->run);
    clickhouse_http_free(x->http);
    clickhouse_url_deinit(&x->url);
    text_deinit(&x->answer);
    json_decref(x->about);
    free(x->sites);
}

static int write_run(struct err *err, struct fetched *x, const char *folder)
{
    int r = fetch_begin(err, x, folder);
    if (!r)
        r = ask_steps(err, x);
    if (!r)
        r = ask_records(err, x);
    if (!r && (r = run_close(steal_ptr(x->run))))
        err_set_errno(err, -r, "cannot write the run that was fetched");
    if (x->n_left_out)
        complain("%" PRIu64 " parts of rows beyond 8 MiB are left out", x->n_left_out);
    return r;
}

static int fetch_into(struct err *err, const char *address, const char *folder)
{
    _cleanup_(fetched_deinit) struct fetched x = { 0 };
    static const char scheme[] = "clickhouse://";
    if (strncmp(address, scheme, strlen(scheme)))
        return err_set(err, -EINVAL, "--from: write clickhouse://HOST/DATABASE");
    int r = clickhouse_url_parse(err, address + strlen(scheme), &x.url);
    if (!r && x.url.dmilib)
        r = err_set(err, -EINVAL, "--from: layout=dmilib has no records to make a run of");
    if (!r)
        r = clickhouse_http_new(err, &x.url, &x.http);
    if (!r) {
        clickhouse_http_most(x.http, MOST_ANSWER);
        r = choose_run(err, &x);
    }
    if (!r)
        r = ask_about(err, &x);
    return r ? r : write_run(err, &x, folder);
}

int fetch(struct err *err, const char *address, char **out)
{
    const char *base = getenv("TMPDIR");
    char *folder = NULL;
    *out = NULL;
    if (asprintf(&folder, "%s/dmi-fetched-XXXXXX", base && *base ? base : "/tmp") < 0)
        return err_set_errno(err, ENOMEM, "cannot fetch a run");
    if (!mkdtemp(folder)) {
        int r = err_set_errno(err, errno, "cannot make a folder for what is fetched");
        free(folder);
        return r;
    }
    int r = fetch_into(err, address, folder);
    if (r)
        fetch_remove(folder);
    else
        *out = folder;
    return r;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *place)
{
    (void)st, (void)type, (void)place;
    remove(path);
    return 0;
}

void fetch_remove(char *folder)
{
    if (folder)
        nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    free(folder);
}
