/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/replay/summary.h"

#include "core/cleanup.h"
#include "core/words.h"
#include "read/account.h"
#include "read/value.h"
#include "tools/common/say.h"
#include "tools/common/select.h"
#include "tools/replay/describe.h"

#include <inttypes.h>
#include <string.h>

struct run_totals {
    uint64_t n_records, n_rows, n_bytes, n_lost;
    uint64_t n_found; /* records in the segments, wanted or not */
    bool balances, grows;
};

static struct run_totals sum(const struct replay *r)
{
    struct run_totals all = { .balances = true };
    for (size_t i = 0; i < r->n; i++) {
        const struct replay_source *s = &r->sources[i];
        _cleanup_(accounts_deinit) struct accounts accounts = { 0 };
        all.n_records += s->n_records;
        all.n_rows += s->n_rows;
        all.n_bytes += s->n_bytes;
        all.n_lost += s->n_lost;
        all.grows |= source_grows(s);
        if (accounts_build(s->reader, &s->sites, &accounts))
            continue;
        all.n_found += accounts.total.found.records;
        all.balances &= !accounts.total.known || accounts.total.balances;
    }
    return all;
}

bool summary_is_missing(const struct replay *r)
{
    if (r->options->follow) /* they may come */
        return false;
    for (size_t i = 0; i < r->n; i++)
        if (!r->sources[i].lacks.code)
            return false;
    complain("%s", r->sources[0].lacks.msg);
    return true;
}

/* All was sent that there is, but there was nothing. */
static bool is_nothing(const struct replay *r, const struct run_totals *all)
{
    bool wanted = all->n_found || r->options->wanted.select.sites.n;
    return !all->n_records && !all->n_lost && !r->stopped && wanted;
}

static void say_state(const struct replay *r, const struct run_totals *all)
{
    if (!all->balances)
        complain("MISMATCH: captured + dropped is not expected (dmi-dump stats)");
    if (is_nothing(r, all) && r->n && r->sources[0].lacks.code)
        complain("%s", r->sources[0].lacks.msg);
    else if (is_nothing(r, all))
        complain("nothing was captured with that site, layer, request or tokens (dmi-dump list)");
    if (r->stopped)
        complain("stopped by a signal%s", r->cursor.path ? ": the cursor says where to go on" : "");
    else if (all->grows && !r->options->follow)
        complain("a process still writes this run: --follow reads on");
    if (r->n_without)
        complain("%" PRIu64 " %s of no request, given to no command", r->n_without,
                 word_for(r->n_without, "row is", "rows are"));
}

static void say(const struct replay *r, const struct run_totals *all)
{
    char records[COUNTED_BYTES], rows[COUNTED_BYTES], bytes[24];
    complain("replayed %s, %s, %s of payload%s",
             counted(all->n_records, "record", "records", records),
             counted(all->n_rows, "row", "rows", rows), bytes_text((double)all->n_bytes, bytes),
             r->resumed ? ", those before the cursor included" : "");
}

static json_t *runs_value(const struct replay *r)
{
    json_t *runs = json_array();
    for (size_t i = 0; i < r->n; i++)
        json_array_append_new(runs, describe_end(&r->sources[i], r->sources[i].done));
    return runs;
}

static void print_json(const struct replay *r, const struct run_totals *all, int status)
{
    _cleanup_(text_deinit) struct text t = { 0 };
    FILE *to = r->options->kind == &sink_stdout ? stderr : stdout;
    json_t *failed = r->failed ? json_incref(r->failed) : json_array();
    value_add_new(
        &t, VALUE_OBJECT(
                { "records", value_u64(all->n_records) }, { "rows", value_u64(all->n_rows) },
                { "bytes", value_u64(all->n_bytes) }, { "not_decoded", value_u64(all->n_lost) },
                { "damage", value_u64(r->n_damage) }, { "balances", json_boolean(all->balances) },
                { "resumed", json_boolean(r->resumed) }, { "stopped", json_boolean(r->stopped) },
                { "commands", value_u64(r->n_commands) },
                { "rows_without_request", value_u64(r->n_without) }, { "failed", failed },
                { "status", json_integer(status) }, { "runs", runs_value(r) }));
    text_add(&t, "\n", 1);
    if (!t.failed)
        fwrite(t.data, 1, t.n, to);
}

static int judge(const struct replay *r, const struct run_totals *all)
{
    bool stopped_early = r->stopped && !r->options->follow;
    return all->n_lost || r->n_damage || !all->balances || r->failed || is_nothing(r, all) ||
                   stopped_early
               ? REPLAY_FAILED
               : REPLAY_OK;
}

int summary(const struct replay *r, const struct err *err, int result)
{
    if (result < 0) {
        complain("%s", err->msg);
        return REPLAY_USAGE;
    }
    struct run_totals all = sum(r);
    int status = judge(r, &all);
    for (size_t i = 0; i < r->n && !is_nothing(r, &all); i++)
        if (select_tell_unjudged(&r->sources[i].rivals.requests, &r->options->wanted.select))
            status = REPLAY_FAILED;
    if (result)
        complain("all of it was replayed before, as the cursor %s says", r->cursor.path);
    say_state(r, &all);
    if (r->options->json)
        print_json(r, &all, status);
    else
        say(r, &all);
    return say_flush(status, REPLAY_USAGE);
}
