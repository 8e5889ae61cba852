/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/dump/fetch.h"

#include "core/cleanup.h"
#include "core/err.h"
#include "core/words.h"
#include "storage/record_fields.h"
#include "tools/common/leftover.h"
#include "tools/common/say.h"
#include "tools/dump/fetch_private.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_LIST  (64ull << 20)  /* bytes of an answer: names of runs, numbers of chunks */
#define MOST_FACTS (256ull << 20) /* the same, of steps or of ends */
#define MOST_ROWS  (1ull << 30)   /* the same, of a chunk's rows */
#define MOST_NAMED 300u           /* bytes of the runs that are named */
#define GIVE_UP_S  60u            /* of a server that has answered and is away, unless it is said */

/* The answer to a question, in x->answer. Return: 0 or -errno with a sentence in @err. */
static int fetch_ask(struct err *err, struct fetched *x, const char *fmt, ...)
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
    TRY(fetch_ask(err, x,
                  "SELECT DISTINCT run FROM `%s`.`%s_facts` WHERE type = 'run' ORDER BY run",
                  x->url.database, x->url.table));
    char *end = x->answer.n ? strchr(x->answer.data, '\n') : NULL;
    if (!end)
        return err_set(err, -ENOENT, "there is no run in %s.%s", x->url.database, x->url.table);
    if (end[1]) {
        for (char *c = x->answer.data; *c; c++)
            *c = *c == '\n' ? ' ' : *c;
        return err_set(err, -ENOTUNIQ, "%s.%s has several runs, name one of them with ?run=: %.*s",
                       x->url.database, x->url.table, MOST_NAMED, x->answer.data);
    }
    *end = 0;
    if (!clickhouse_url_is_run(x->answer.data))
        return err_set(err, -EBADMSG, "the server names a run by what is no UUID");
    x->url.run = strdup(x->answer.data);
    return x->url.run ? 0 : err_set_errno(err, ENOMEM, "cannot fetch a run");
}

/* ------------------------------------------------------------------------- its facts */

/* A line of JSON each, in x->answer. */
static int ask_facts(struct err *err, struct fetched *x, const char *type)
{
    clickhouse_http_most(x->http, MOST_FACTS);
    return fetch_ask(err, x,
                     "SELECT facts FROM `%s`.`%s_facts` FINAL WHERE run = '%s' AND type = '%s' "
                     "FORMAT TabSeparatedRaw",
                     x->url.database, x->url.table, x->url.run, type);
}

/* Of several (a replay that was resumed says it again) the sites are the same. */
static int ask_about(struct err *err, struct fetched *x)
{
    TRY(ask_facts(err, x, "run"));
    if (!x->answer.n)
        return err_set(err, -ENOENT, "there is no run %s in %s.%s", x->url.run, x->url.database,
                       x->url.table);
    return fetch_fact(err, x->answer.data, strcspn(x->answer.data, "\n"), &x->about);
}

static int ask_steps(struct err *err, struct fetched *x)
{
    TRY(ask_facts(err, x, "step"));
    TRY(fetch_steps(err, x));
    TRY(ask_facts(err, x, "outcome"));
    return fetch_ends(err, x);
}

/* ------------------------------------------------------------------------- its records */

#define NAMED(type, name) #name ", "

static int ask_chunk(struct err *err, struct fetched *x, uint64_t chunk)
{
    clickhouse_http_most(x->http, MOST_ROWS);
    TRY(fetch_ask(err, x,
                  "SELECT record, part, " RECORD_FIELDS(
                      NAMED) "site, dtype, shape, step_sequence, first_row, "
                             "rows, payload FROM `%s`.`%s` FINAL WHERE run = "
                             "'%s' AND chunk = %" PRIu64
                             " AND rejected = 0 AND superseded = 0 ORDER BY record, part "
                             "FORMAT RowBinary",
                  x->url.database, x->url.table, x->url.run, chunk));
    return fetch_rows(err, x);
}

/* A line of the list: digits, and more than the line before. */
static int take_chunk(struct err *err, const char **rest, uint64_t first, uint64_t *chunk)
{
    char *end;
    errno = 0;
    *chunk = strtoull(*rest, &end, 10);
    bool good = **rest >= '0' && **rest <= '9' && *end == '\n' && !errno && *chunk >= first &&
                *chunk < UINT64_MAX;
    *rest = end + 1;
    return good ? 0 : err_set(err, -EBADMSG, "the server's list of chunks is none");
}

static int ask_records(struct err *err, struct fetched *x)
{
    _cleanup_(text_deinit) struct text chunks = { 0 };
    clickhouse_http_most(x->http, MOST_LIST);
    int r = fetch_ask(err, x,
                      "SELECT DISTINCT chunk FROM `%s`.`%s` WHERE run = '%s' AND rejected = 0 AND "
                      "superseded = 0 ORDER BY chunk",
                      x->url.database, x->url.table, x->url.run);
    text_add(&chunks, x->answer.n ? x->answer.data : "", r ? 0 : x->answer.n);
    if (!r && chunks.failed)
        r = err_set_errno(err, ENOMEM, "cannot fetch a run");
    const char *rest = chunks.data;
    uint64_t chunk, next = 0; /* the first that may come */
    while (!r && rest && *rest) {
        r = take_chunk(err, &rest, next, &chunk);
        if (!r)
            r = ask_chunk(err, x, chunk);
        next = chunk + 1;
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
        complain("%" PRIu64 " %s left out", x->n_left_out,
                 word_for(x->n_left_out, "part of a row beyond 8 MiB is",
                          "parts of rows beyond 8 MiB are"));
    if (x->n_steps_refused)
        complain("%" PRIu64 " %s left out", x->n_steps_refused,
                 word_for(x->n_steps_refused, "step of the table contradicts itself and is",
                          "steps of the table contradict themselves and are"));
    return r;
}

static int fetch_into(struct err *err, const char *address, const char *folder,
                      uint64_t *n_left_out)
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
        x.url.give_up_s = x.url.give_up_s ? x.url.give_up_s : GIVE_UP_S;
        clickhouse_http_most(x.http, MOST_LIST);
        r = choose_run(err, &x);
    }
    if (!r)
        r = ask_about(err, &x);
    if (!r)
        r = write_run(err, &x, folder);
    *n_left_out = x.n_left_out + x.n_steps_refused;
    return r;
}

int fetch(struct err *err, const char *address, char **out, uint64_t *n_left_out)
{
    const char *base = getenv("TMPDIR");
    char *folder = NULL;
    *out = NULL;
    *n_left_out = 0;
    if (asprintf(&folder, "%s/dmi-fetched-XXXXXX", base && *base ? base : "/tmp") < 0)
        return err_set_errno(err, ENOMEM, "cannot fetch a run");
    leftover_hold();
    int r =
        mkdtemp(folder) ? 0 : err_set_errno(err, errno, "cannot make a folder for what is fetched");
    if (!r)
        leftover_note(folder);
    leftover_release();
    if (r) {
        free(folder);
        return r;
    }
    r = fetch_into(err, address, folder, n_left_out);
    if (r)
        fetch_remove(folder);
    else
        *out = folder;
    return r;
}

void fetch_remove(char *folder)
{
    leftover_remove(folder);
    free(folder);
}
