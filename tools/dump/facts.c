/* SPDX-License-Identifier: Apache-2.0 */
/* What several commands say of a run: where it comes from, what it reports of itself, what is wrong with it. */
#include "tools/dump/dump.h"

#include "core/words.h"
#include "tools/common/trace_words.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

int no_memory(void)
{
    complain("no memory");
    return DUMP_USAGE;
}

void complain_undecoded(const struct err *why)
{
    complain("%s%s", why->code == -ENOTSUP ? "" : "DAMAGED: ", why->msg);
}

const char *facts_state(const struct reader_run *run)
{
    return run->state == READER_CLOSED    ? "closed"
           : run->state == READER_RUNNING ? "running"
                                          : "killed";
}

uint64_t facts_n_records(const struct reader *reader)
{
    uint64_t n = 0;
    for (uint32_t s = 0; s < reader_n_sites(reader); s++) {
        struct reader_account account;
        reader_account(reader, s, &account);
        n += account.found.records;
    }
    return n;
}

/* "tp 1 of 2, pp 0 of 2"; an axis of one rank is left out. */
static void add_ranks(struct text *to, const struct reader_rank *rank)
{
    size_t n = to->n;
    for (int a = 0; a < DMI_AXIS_COUNT; a++)
        if (rank->ranks[2 * a + 1] > 1)
            text_printf(to, "%s%s %d of %d", to->n > n ? ", " : "", dmi_axis_name((uint32_t)a),
                        rank->ranks[2 * a], rank->ranks[2 * a + 1]);
    if (to->n == n)
        text_printf(to, rank->known ? "rank 0 of 1" : "no steps, nothing captured");
}

static json_t *ranks_value(const struct reader_run *run)
{
    json_t *list = json_array();
    for (size_t i = 0; run->ranks && i < run->n_runs; i++) {
        const struct reader_rank *k = &run->ranks[i];
        struct reader_run one = { .state = k->state };
        json_t *o = json_pack("{s:o, s:o, s:s, s:b}", "run", value_text(k->path), "uuid",
                              value_text(k->uuid), "state", facts_state(&one), "known", k->known);
        for (int a = 0; o && k->known && a < DMI_AXIS_COUNT; a++)
            json_object_set_new(o, dmi_axis_name((uint32_t)a),
                                json_pack("[i, i]", k->ranks[2 * a], k->ranks[2 * a + 1]));
        json_array_append_new(list, o);
    }
    return list;
}

static void ranks_lines(struct report *report, const struct reader_run *run)
{
    for (size_t i = 0; run->ranks && i < run->n_runs; i++) {
        struct text t = { 0 };
        add_ranks(&t, &run->ranks[i]);
        report_line(report, "%s %s: %s", i ? "        " : "ranks   ", t.data ? t.data : "?",
                    run->ranks[i].path);
        text_deinit(&t);
    }
}

static void run_members(struct report *report, const struct reader_run *run)
{
    report_member(report, "run", value_text(run->path));
    report_member(report, "uuid", value_text(run->uuid));
    report_member(report, "state", value_text(facts_state(run)));
    report_member(report, "model", value_text(run->model));
    report_member(report, "host", value_text(run->host));
    report_member(report, "pid", value_u64(run->pid));
    report_member(report, "start_realtime_ns", value_u64(run->start_ns));
    if (run->n_runs > 1)
        report_member(report, "ranks", ranks_value(run));
    report_member(report, "segments", value_u64(run->n_segments));
    report_member(report, "file_bytes", value_u64(run->n_file_bytes));
    report_member(report, "torn_bytes", value_u64(run->n_torn));
}

void facts_run(struct report *report, const struct reader *reader)
{
    const struct reader_run *run = reader_run(reader);
    char size[24], forwards[48] = "";
    if (report->json) {
        run_members(report, run);
        return;
    }
    report_line(report, "run      %s (%s)", run->path, facts_state(run));
    ranks_lines(report, run);
    if (run->model)
        report_line(report, "model    %s", run->model);
    report_line(report, "files    %zu %s, %s", run->n_segments,
                word_for(run->n_segments, "segment", "segments"),
                bytes_text((double)run->n_file_bytes, size));
    if (run->counters)
        snprintf(forwards, sizeof forwards, " of %" PRIu64 " %s", run->counters->forwards,
                 word_for(run->counters->forwards, "forward", "forwards"));
    uint64_t n_steps = run->counters ? run->counters->steps : (uint64_t)reader_n_steps(reader);
    report_line(report, "records  %" PRIu64 "%s, %" PRIu64 " %s that the engine named",
                facts_n_records(reader), forwards, n_steps, word_for(n_steps, "step", "steps"));
    for (size_t i = 0; i < run->n_conventions; i++)
        report_line(report, "%s %s = %s", i ? "        " : "stated  ", run->conventions[i].key,
                    run->conventions[i].value);
}

json_t *facts_object(const struct reader_pair *pairs, size_t n)
{
    json_t *object = json_object();
    for (size_t i = 0; object && i < n; i++)
        if (json_object_set_new(object, pairs[i].key, value_text(pairs[i].value))) {
            json_decref(object);
            object = NULL;
        }
    return object;
}

void facts_pairs(struct report *report, const char *key, const struct reader_pair *pairs, size_t n)
{
    if (report->json)
        report_member(report, key, facts_object(pairs, n));
}

int facts_trace(struct report *report, struct reader *reader)
{
    uint64_t n_steps, n_marks;
    bool any;
    int r = reader_count_trace(reader, &n_steps, &n_marks, &any);
    if (r || !any)
        return r;
    report_line(report, "trace    %" PRIu64 " %s with times, %" PRIu64 " %s: dmi-trace steps",
                n_steps, word_for(n_steps, "step", "steps"), n_marks,
                word_for(n_marks, "mark", "marks"));
    report_member(
        report, "trace",
        json_pack("{s:o, s:o}", "steps", value_u64(n_steps), "marks", value_u64(n_marks)));
    return 0;
}

struct judged {
    struct report *report;
    const struct reader_run *run;
    json_t *rows;
    bool holds;
};

static enum reader_state state_of(const struct reader_run *run, const char *path)
{
    for (size_t i = 0; run->ranks && i < run->n_runs; i++)
        if (!strcmp(run->ranks[i].path, path))
            return run->ranks[i].state;
    return run->state;
}

static void take_judged(void *ctx, const struct trace_account *a)
{
    struct judged *j = ctx;
    char words[256];
    if (!a->any)
        return;
    trace_words_verdict(a, 0, state_of(j->run, a->path), words);
    report_line(j->report, "trace    %s%s%s: dmi-trace check", j->run->ranks ? a->path : "",
                j->run->ranks ? ": " : "", words);
    trace_words_wrong(j->report, a);
    json_array_append_new(j->rows, json_pack("{s:o, s:b, s:b, s:o}", "run", value_text(a->path),
                                             "holds", a->holds, "lost", a->lost_any, "wrong",
                                             trace_words_wrong_rows(a)));
    j->holds &= a->holds;
}

int facts_trace_account(struct report *report, struct reader *reader, bool *holds)
{
    struct err err = { 0 };
    struct judged j = { report, reader_run(reader), json_array(), true };
    int r = trace_judge(&err, reader, take_judged, &j);
    if (!r && json_array_size(j.rows))
        report_member(report, "trace", j.rows);
    else
        json_decref(j.rows);
    *holds = j.holds;
    return r;
}

void facts_changes(struct report *report, const struct reader_run *run)
{
    json_t *list = json_array();
    for (size_t i = 0; i < run->n_changes; i++) {
        const struct reader_change *c = &run->changes[i];
        if (report->json)
            json_array_append_new(list, json_pack("{s:o, s:o, s:o, s:o}", "time_ns",
                                                  value_u64(c->time_ns), "launch",
                                                  value_u64(c->launch), "step_sequence",
                                                  value_u64(c->step), "what", value_text(c->what)));
        report_line(report, "changed before launch %" PRIu64 " and step sequence %" PRIu64 ": %s",
                    c->launch, c->step, c->what);
    }
    report_member(report, "changes", list);
}

void facts_problems(struct report *report, const struct reader_run *run)
{
    json_t *list = json_array();
    for (size_t i = 0; i < run->n_problems; i++) {
        const struct reader_problem *p = &run->problems[i];
        if (report->json)
            json_array_append_new(
                list, json_pack("{s:o, s:o, s:o, s:o}", "site", value_text(p->site), "reason",
                                value_text(p->reason), "times", value_u64(p->times), "sentence",
                                value_text(p->sentence)));
        report_line(report, "problem: %s%s%s%s: %s (%" PRIu64 "x)", p->site ? "site " : "",
                    p->site ? p->site : "", p->site ? ", " : "", p->reason, p->sentence, p->times);
    }
    report_member(report, "problems", list);
}

static json_t *finding_value(const struct reader_finding *f, const char *file, const char *text)
{
    json_t *o = json_pack("{s:b, s:b, s:o}", "damage", f->damage, "unknown", f->unknown, "file",
                          value_text(file));
    if (o && f->chunk >= 0)
        json_object_set_new(o, "chunk", json_integer(f->chunk));
    if (o)
        json_object_set_new(o, "offset", value_u64(f->offset));
    if (o)
        json_object_set_new(o, "text", value_text(text));
    return o;
}

static void finding_line(const struct reader_finding *f, const char *file, const char *text)
{
    char place[64] = "";
    if (f->chunk >= 0)
        snprintf(place, sizeof place, ", chunk %" PRId64 ", offset %" PRIu64, f->chunk, f->offset);
    else if (strcmp(file, "ranks")) /* several runs as one have no bytes of their own */
        snprintf(place, sizeof place, ", offset %" PRIu64, f->offset);
    complain("%s%s%s: %s",
             f->damage    ? "DAMAGED: "
             : f->unknown ? "NOT KNOWN: "
                          : "",
             file, place, text);
}

size_t facts_findings(struct report *report, const struct reader *reader)
{
    size_t n_damage = 0;
    json_t *list = json_array();
    for (size_t i = 0; i < reader_n_findings(reader); i++) {
        const struct reader_finding *f = reader_finding(reader, i);
        const char *file = f->file ? f->file : "?", *text = f->text ? f->text : "(no memory)";
        n_damage += f->damage;
        if (report->json)
            json_array_append_new(list, finding_value(f, file, text));
        else
            finding_line(f, file, text);
    }
    report_member(report, "findings", list);
    return n_damage;
}

/* ------------------------------------------------------------------------- the accounting */

bool facts_is_segment(const struct reader_run *run)
{
    struct stat st;
    return !stat(run->path, &st) && !S_ISDIR(st.st_mode);
}

static const char *lost_words(const struct reader_run *run)
{
    return run->state == READER_RUNNING ? "still on its way" : "lost at kill";
}

/* Records that were captured, and how many of them are gone with their segments. */
static void captured_words(const struct account *a, char *out, size_t n_out)
{
    char captured[32], released[32];
    struct dmi_tally all = account_captured(a);
    grouped(all.records, captured);
    grouped(a->released.records, released);
    if (a->released.records)
        snprintf(out, n_out, "captured %s (%s of them released)", captured, released);
    else
        snprintf(out, n_out, "captured %s", captured);
}

/* A site with launches that are in no sum. */
static bool is_left_out(const struct reader_problem *p)
{
    return !strcmp(p->reason, "switched_off") || !strcmp(p->reason, "uncounted");
}

static size_t n_left_out(const struct reader_run *run)
{
    size_t n = 0;
    for (size_t i = 0; i < run->n_problems; i++)
        n += is_left_out(&run->problems[i]);
    return n;
}

void facts_left_out(struct report *report, const struct reader_run *run)
{
    json_t *list = json_array();
    for (size_t i = 0; i < run->n_problems; i++) {
        const struct reader_problem *p = &run->problems[i];
        if (!is_left_out(p))
            continue;
        if (report->json)
            json_array_append_new(list, value_text(p->site));
        report_line(report, "not in this account: site %s: %s", p->site ? p->site : "",
                    p->sentence);
    }
    report_member(report, "not_in_account", list);
}

static void account_line(struct report *report, const struct reader_run *run,
                         const struct account *a)
{
    char expected[32], captured[96], dropped[32], lost[32];
    const char *balances = n_left_out(run) ? "accounting balances as far as launches were counted"
                                           : "accounting balances";
    grouped(a->expected.records, expected);
    captured_words(a, captured, sizeof captured);
    grouped(a->dropped.records, dropped);
    grouped(a->lost.records, lost);
    if (!a->known)
        report_line(report,
                    facts_is_segment(run)
                        ? "accounting not known: this is one segment, the counters are its run's"
                        : "accounting not known: the counters cannot be read");
    else if (a->wraps)
        report_line(report,
                    "accounting MISMATCH: the counters' sums do not fit 64 bits: they are wrong");
    else if (!a->balances)
        report_line(report,
                    "accounting MISMATCH: expected %s records, %s + dropped %s (or rows, or "
                    "bytes: dmi-dump stats)",
                    expected, captured, dropped);
    else if (run->state == READER_CLOSED)
        report_line(report, "%s: expected %s = %s + dropped %s records, and so in rows and bytes",
                    balances, expected, captured, dropped);
    else
        report_line(report, "%s: expected %s = %s + dropped %s + %s %s records; the process %s",
                    balances, expected, captured, dropped, lost_words(run), lost,
                    run->state == READER_RUNNING ? "is still running" : "ended without closing");
}

void facts_account(struct report *report, const struct reader *reader, const struct account *a)
{
    report_member(report, "accounting",
                  json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "expected",
                            value_u64(a->expected.records), "captured",
                            value_u64(account_captured(a).records), "released",
                            value_u64(a->released.records), "dropped",
                            value_u64(a->dropped.records), "lost", value_u64(a->lost.records),
                            "balances", a->known ? json_boolean(a->balances) : json_null()));
    account_line(report, reader_run(reader), a);
}
