/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/replay/rehearse_report.h"

#include "core/cleanup.h"
#include "read/runs.h"
#include "read/value.h"
#include "tools/common/say.h"
#include "tools/replay/rehearse.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char *const fates[] = { "kept", "refused", "cut", "torn" };

#define N_FATES (sizeof fates / sizeof *fates)

struct reporting {
    const struct replay_options *options;
    struct rehearsal_terms terms;
    json_t *runs; /* NULL: in words */
    bool any;     /* run was there */
};

/* ------------------------------------------------------------------------- in words */

static void say_tally(const char *what, const struct rehearsal_tally *t,
                      const struct rehearsal *all)
{
    char records[32], rows[32], bytes[24];
    double of = all->wanted.n_bytes ? 100 * (double)t->n_bytes / (double)all->wanted.n_bytes : 0;
    printf("  %-8s %14s records %16s rows %12s %6.1f%%\n", what, grouped(t->n_records, records),
           grouped(t->n_rows, rows), bytes_text((double)t->n_bytes, bytes), of);
}

/* Bytes as a share of what the link carries in that time. */
static double share_of_link(const struct rehearsal *r, const struct rehearsal_terms *t,
                            const struct rehearsal_tally *tally)
{
    double most = r->seconds * (double)t->link_bytes_per_s;
    return most > 0 ? (double)tally->n_bytes / most : 0;
}

static void say_requests(const struct rehearsal *r)
{
    uint64_t n[N_FATES] = { 0 };
    for (size_t i = 0; i < r->n_requests; i++)
        n[r->requests[i].fate]++;
    printf("  requests:");
    for (size_t i = 0; i < N_FATES; i++)
        printf("%s %" PRIu64 " %s", i ? "," : "", n[i], fates[i]);
    printf("\n");
    for (size_t i = 0; i < r->n_requests; i++) {
        const struct rehearsal_request *q = &r->requests[i];
        char line[96];
        if (q->fate == REHEARSAL_KEPT)
            continue;
        snprintf(line, sizeof line,
                 "    %-7s from step %-8" PRIu64 " %10" PRIu64 " of %" PRIu64 " rows  ",
                 fates[q->fate], q->step, q->n_rows_kept, q->n_rows);
        say_line(stdout, line, q->id, strlen(q->id));
    }
}

static void say(const struct reporting *p, const char *path, const struct rehearsal *r)
{
    const struct rehearsal_terms *t = &p->terms;
    char link[24], ring[24];
    say_line(stdout, "", path, strlen(path));
    printf("  %s%s%s: link %s/s, ring %s, %.3f s\n", overload_mode_name(t->spec->overload.mode),
           overload_sheds(&t->spec->overload) ? ", " : "",
           overload_sheds(&t->spec->overload) ? overload_strategy_name(t->spec->overload.strategy)
                                              : "",
           bytes_text((double)t->link_bytes_per_s, link), bytes_text((double)t->ring_bytes, ring),
           r->seconds);
    say_tally("wanted", &r->wanted, r);
    say_tally("kept", &r->kept, r);
    say_tally("shed", &r->shed, r);
    say_tally("dropped", &r->dropped, r);
    printf(
        "  the link: %.2f times what it carries was wanted, %.2f of it kept; the ring was at most "
        "%.0f%% full\n",
        share_of_link(r, t, &r->wanted), share_of_link(r, t, &r->kept), 100 * r->most_full);
    if (r->n_waits)
        printf("  %" PRIu64 " launches waited, %" PRIu64
               " of them in vain; the longest %.3f s, all "
               "%.3f s\n",
               r->n_waits, r->n_over, r->longest_wait_s, r->wait_s);
    if (r->n_elsewhere)
        printf("  left out: %" PRIu64 " records of sites that the spec does not have\n",
               r->n_elsewhere);
    say_requests(r);
}

/* ------------------------------------------------------------------------- as JSON */

static json_t *tally_value(const struct rehearsal_tally *t)
{
    return json_pack("{s:o, s:o, s:o}", "records", value_u64(t->n_records), "rows",
                     value_u64(t->n_rows), "bytes", value_u64(t->n_bytes));
}

static json_t *requests_value(const struct rehearsal *r)
{
    json_t *all = json_array();
    for (size_t i = 0; i < r->n_requests; i++) {
        const struct rehearsal_request *q = &r->requests[i];
        json_t *step = q->fate == REHEARSAL_KEPT ? json_null() : value_u64(q->step);
        json_array_append_new(all, VALUE_OBJECT({ "request", value_text(q->id) },
                                                { "became", json_string(fates[q->fate]) },
                                                { "step", step }, { "rows", value_u64(q->n_rows) },
                                                { "rows_kept", value_u64(q->n_rows_kept) },
                                                { "bytes", value_u64(q->n_bytes) },
                                                { "bytes_kept", value_u64(q->n_bytes_kept) }));
    }
    return all;
}

static json_t *run_value(const struct reporting *p, const char *path, const struct rehearsal *r)
{
    const struct rehearsal_terms *t = &p->terms;
    json_t *waits = json_pack("{s:o, s:o, s:o, s:o}", "launches", value_u64(r->n_waits), "in_vain",
                              value_u64(r->n_over), "longest_s", value_double(r->longest_wait_s),
                              "all_s", value_double(r->wait_s));
    return VALUE_OBJECT({ "path", value_text(path) }, { "seconds", value_double(r->seconds) },
                        { "wanted", tally_value(&r->wanted) }, { "kept", tally_value(&r->kept) },
                        { "shed", tally_value(&r->shed) }, { "dropped", tally_value(&r->dropped) },
                        { "other_sites", value_u64(r->n_elsewhere) },
                        { "link_wanted", value_double(share_of_link(r, t, &r->wanted)) },
                        { "link_kept", value_double(share_of_link(r, t, &r->kept)) },
                        { "ring_most_full", value_double(r->most_full) }, { "waits", waits },
                        { "requests", requests_value(r) });
}

static void print_json(const struct reporting *p)
{
    const struct rehearsal_terms *t = &p->terms;
    _cleanup_(text_deinit) struct text text = { 0 };
    value_add_new(
        &text, VALUE_OBJECT(
                   { "spec", value_text(p->options->policy) },
                   { "mode", json_string(overload_mode_name(t->spec->overload.mode)) },
                   { "strategy", json_string(overload_strategy_name(t->spec->overload.strategy)) },
                   { "link", value_u64(t->link_bytes_per_s) }, { "ring", value_u64(t->ring_bytes) },
                   { "speed", value_double(t->speed) }, { "runs", json_incref(p->runs) }));
    text_add(&text, "\n", 1);
    if (!text.failed)
        fwrite(text.data, 1, text.n, stdout);
}

/* ------------------------------------------------------------------------- runs */

static int one_run(struct err *err, struct reporting *p, const char *path)
{
    struct reader *reader = NULL;
    struct rehearsal r = { 0 };
    int res = reader_open(err, path, &reader);
    if (!res)
        res = rehearse_run(err, reader, &p->terms, &r);
    if (!res && p->runs)
        json_array_append_new(p->runs, run_value(p, path, &r));
    else if (!res)
        say(p, path, &r);
    p->any |= !res;
    rehearsal_deinit(&r);
    reader_close(reader);
    return res;
}

/* A run, or each run in a folder. Return: an exit status. */
static int one_word(struct reporting *p, const char *path)
{
    _cleanup_(runs_deinit) struct runs runs = { 0 };
    struct err err = { 0 };
    int r = runs_at(path, &runs);
    if (r)
        err_set_errno(&err, -r, "cannot rehearse");
    for (size_t i = 0; !r && i < runs.n; i++)
        r = one_run(&err, p, path = runs.paths[i]);
    if (r)
        complain("%s: %s", path, err.msg);
    return r ? REPLAY_USAGE : REPLAY_OK;
}

static int load(const struct replay_options *o, struct spec **out)
{
    struct spec_errors errors = { 0 };
    int r = spec_load(o->policy, (const char *const *)o->vars, o->n_vars, &errors, out);
    for (size_t i = 0; i < errors.n_lines; i++)
        complain("%s", errors.lines[i]);
    if (r < 0)
        complain("%s: %s", o->policy, strerror(-r));
    spec_errors_deinit(&errors);
    return r;
}

int rehearse_report(const struct replay_options *o)
{
    struct spec *spec = NULL;
    int status = load(o, &spec) ? REPLAY_USAGE : REPLAY_OK;
    struct reporting p = { .options = o, .runs = o->json ? json_array() : NULL };
    p.terms = (struct rehearsal_terms){ spec, o->link, o->ring, o->speed > 0 ? o->speed : 1 };
    if (spec && !p.terms.ring_bytes)
        p.terms.ring_bytes = spec->ring_bytes;
    if (spec && !p.terms.ring_bytes) {
        complain("the ring's size is not said: --ring SIZE, or ring: {bytes: SIZE} in %s",
                 o->policy);
        status = REPLAY_USAGE;
    }
    for (int i = 0; status == REPLAY_OK && i < o->n_runs; i++)
        status = one_word(&p, o->runs[i]);
    if (status == REPLAY_OK && p.runs)
        print_json(&p);
    json_decref(p.runs);
    spec_free(spec);
    return say_flush(status, REPLAY_USAGE);
}
