/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/trace/why.h"

#include "core/grow.h"
#include "core/sorted.h"
#include "tools/common/report.h"
#include "tools/trace/batch.h"
#include "tools/trace/why_lines.h"
#include "tools/trace/why_slow.h"
#include "tools/trace/why_suspects.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SAMPLE                                                                                     \
    33u /* turns that a kind's account is the mean of, at most: those nearest to the median, up to half of all */
#define LEAST 8u  /* turns that a kind has, or its account says nothing */
#define SHOWN 10u /* slow turns, or such in a row, that are listed unless all are asked for */
#define EACH  8u  /* turns in a row that an account is the mean of, at most */

/* Whose an account is: of a kind's sample, of the step asked for, or, from here on, of slow turns number 0, 1, ... */
enum { OF_KIND, OF_STEP, OF_SLOW };

/* Turns of one phase and size. */
struct kind {
    struct timed {
        uint64_t ns;
        size_t turn; /* index in the run's */
    } * turns;       /* the shortest first */
    size_t n, room;
    size_t first, n_sample; /* those that the account is of, in @turns */
    uint64_t median_ns;
    double noise;       /* 1.4826 times the median distance to the median, as a share of that */
    struct why_sum sum; /* of the sample */
    uint64_t launches, graphs, loads, allocations; /* of all of them */
};

struct answer {
    struct report report;
    const struct trace_run *run;
    struct why_turns turns;
    struct why_names names;
    struct kind kinds[BATCH_KINDS];
    struct why_account *accounts; /* of the samples, and of the step asked for */
    size_t n_accounts, accounts_room;
    uint64_t step; /* number of that, or WHY_ALL */
    struct why_judged judged;
    struct why_sum *slow; /* of the slow turns that are listed */
    size_t n_shown;
    bool slow_step; /* the step asked for is */
    bool failed;    /* no memory */
};

/* ------------------------------------------------------------------------- kinds */

static int by_turn_time(const void *pa, const void *pb)
{
    const struct timed *a = pa, *b = pb;
    ORDER(a, b, ns);
    ORDER(a, b, turn);
    return 0;
}

static int by_value(const void *pa, const void *pb)
{
    const uint64_t *a = pa, *b = pb;
    return *a < *b ? -1 : *a > *b;
}

static void find_noise(struct answer *a, struct kind *k)
{
    uint64_t *off = calloc(k->n, sizeof *off);
    a->failed |= !off;
    for (size_t i = 0; off && i < k->n; i++) {
        uint64_t ns = k->turns[i].ns;
        off[i] = ns > k->median_ns ? ns - k->median_ns : k->median_ns - ns;
    }
    if (off) {
        SORT(off, k->n, by_value);
        k->noise = 1.4826 * (double)off[k->n / 2] / (double)k->median_ns;
    }
    free(off);
}

/* The turns nearest to the median. */
static void choose(struct answer *a, struct kind *k)
{
    SORT(k->turns, k->n, by_turn_time);
    k->median_ns = k->turns[k->n / 2].ns;
    find_noise(a, k);
    k->n_sample = k->n < 2 * SAMPLE ? (k->n + 1) / 2 : SAMPLE;
    k->first = (k->n - k->n_sample) / 2;
}

static void sort_out(struct answer *a)
{
    for (size_t i = 0; i < a->turns.n && !a->failed; i++) {
        struct kind *k = &a->kinds[batch_kind_of(&a->turns.all[i].at)];
        if (a->turns.all[i].none != TURN_IS)
            continue;
        if ((a->failed = GROW(k->turns, k->n, k->room)))
            continue;
        const struct dmi_step_times *at = &a->turns.all[i].at;
        k->turns[k->n++] = (struct timed){ why_turn_ns(&a->turns.all[i]), i };
        k->launches += at->launches;
        k->graphs += at->graph_launches;
        k->loads += at->loads;
        k->allocations += at->allocations;
    }
    for (size_t i = 0; i < BATCH_KINDS && !a->failed; i++)
        if (a->kinds[i].n)
            choose(a, &a->kinds[i]);
}

/* ------------------------------------------------------------------------- accounts */

static void ask_for(struct answer *a, size_t turn, size_t whose)
{
    if ((a->failed = a->failed || GROW(a->accounts, a->n_accounts, a->accounts_room)))
        return;
    a->accounts[a->n_accounts++] =
        (struct why_account){ .turn = &a->turns.all[turn], .whose = whose };
}

static int by_begin(const void *pa, const void *pb)
{
    const struct why_account *a = pa, *b = pb;
    ORDER(a->turn, b->turn, begin_ns);
    ORDER(a->turn, b->turn, at.number);
    ORDER(a, b, whose);
    return 0;
}

static struct kind *kind_of(struct answer *a, const struct why_turn *turn)
{
    return &a->kinds[batch_kind_of(&turn->at)];
}

/* NULL: of the step asked for, whose account is by itself. */
static struct why_sum *sum_of(struct answer *a, const struct why_account *one)
{
    return one->whose == OF_KIND   ? &kind_of(a, one->turn)->sum
           : one->whose >= OF_SLOW ? &a->slow[one->whose - OF_SLOW]
                                   : NULL;
}

/* The accounts that an answer needs. */
static void ask_for_all(struct answer *a)
{
    for (size_t i = 0; i < BATCH_KINDS; i++) {
        const struct kind *k = &a->kinds[i];
        for (size_t n = 0; k->n >= LEAST && n < k->n_sample; n++)
            ask_for(a, k->turns[k->first + n].turn, OF_KIND);
    }
    for (size_t i = 0; i < a->turns.n && a->step != WHY_ALL; i++)
        if (a->turns.all[i].at.number == a->step && a->turns.all[i].none == TURN_IS)
            ask_for(a, i, OF_STEP);
    for (size_t i = 0; i < a->n_shown; i++)
        for (size_t n = 0; n < a->judged.slow[i].n && n < EACH; n++)
            ask_for(a, a->judged.slow[i].first + n, OF_SLOW + i);
}

static int account(struct answer *a)
{
    a->slow = calloc(a->n_shown + 1, sizeof *a->slow);
    a->failed |= !a->slow;
    ask_for_all(a);
    SORT(a->accounts, a->n_accounts, by_begin);
    int r =
        a->failed ? 0 : why_accounts_fill(a->run, &a->turns, &a->names, a->accounts, a->n_accounts);
    for (size_t i = 0; !r && !a->failed && i < a->n_accounts; i++)
        if (sum_of(a, &a->accounts[i]))
            sum_of(a, &a->accounts[i])->how[a->accounts[i].how]++;
    for (size_t i = 0; !r && !a->failed && i < a->n_accounts; i++)
        if (sum_of(a, &a->accounts[i]))
            a->failed = !why_sum_add(sum_of(a, &a->accounts[i]), &a->accounts[i]);
    return r;
}

/* ------------------------------------------------------------------------- a run */

static void say_kind(struct answer *a, unsigned number, json_t *to)
{
    struct kind *k = &a->kinds[number];
    enum batch_phase phase = (enum batch_phase)(number / BATCH_BUCKETS);
    uint64_t rows = batch_rows(number % BATCH_BUCKETS);
    enum why_how how = why_sum_how(&k->sum);
    double n = (double)k->sum.how[how];
    size_t left = k->n_sample - k->sum.how[how];
    report_line(&a->report,
                "usual   %s, %" PRIu64
                " rows: %.3f ms, the median of %zu turns (noise %.0f%%); %zu of those near it:",
                phase ? batch_word(phase) : "phase unknown", rows, (double)k->median_ns / 1e6, k->n,
                100 * k->noise, k->sum.how[how]);
    json_t *lines = why_lines(&a->report, &a->names, &k->sum.parts, n, how, NULL);
    if (left)
        report_line(&a->report,
                    "           %zu more near it are left out: something else tells busy from "
                    "idle there, or nothing",
                    left);
    json_array_append_new(
        to,
        VALUE_OBJECT({ "phase", json_string(batch_word(phase)) }, { "rows", value_u64(rows) },
                     { "turns", value_u64(k->n) }, { "median_ns", value_u64(k->median_ns) },
                     { "noise", value_double(k->noise) }, { "accounts", value_u64((uint64_t)n) },
                     { "by", json_string(why_how_words(how)) }, { "lines", lines }));
}

/* Turns that have none, and turns that the judge did not judge. */
static void say_judged(struct answer *a)
{
    const struct why_turns *t = &a->turns;
    const struct why_judged *j = &a->judged;
    size_t n = t->none[TURN_IS];
    json_t *none = json_array();
    report_line(&a->report, "judged  %zu of %zu turns (%.0f%%), of %zu steps", j->n_judged, n,
                n ? 100 * (double)j->n_judged / (double)n : 0.0, t->n);
    if (j->n_rare)
        report_line(&a->report, "        %zu are of loads seen too rarely", j->n_rare);
    if (j->n_early)
        report_line(&a->report, "        %zu came, and the first %u are judged together",
                    j->n_early, JUDGE_FIRST);
    for (unsigned i = TURN_IS + 1; i < TURN_REASONS; i++) {
        if (!t->none[i])
            continue;
        report_line(&a->report, "        %zu without a turn: %s", t->none[i],
                    why_none_words((enum why_none)i));
        json_array_append_new(
            none, VALUE_OBJECT({ "steps", value_u64(t->none[i]) },
                               { "why", json_string(why_none_words((enum why_none)i)) }));
    }
    report_member(&a->report, "n_steps", value_u64(t->n));
    report_member(&a->report, "n_turns", value_u64(n));
    report_member(&a->report, "none", none);
    report_member(&a->report, "n_judged", value_u64(j->n_judged));
    report_member(&a->report, "n_rare", value_u64(j->n_rare));
    report_member(&a->report, "n_early", value_u64(j->n_early));
    report_member(&a->report, "n_slow", value_u64(j->n_slow_turns));
}

/* Of each kind of batch, the least excess that the judge finds, as of its last turn. */
static void say_sees(struct answer *a)
{
    double sees[BATCH_KINDS] = { 0 };
    json_t *rows = json_array();
    for (size_t i = 0; i < a->turns.n; i++)
        if (a->judged.of[i].state == JUDGE_JUDGED)
            sees[batch_kind_of(&a->turns.all[i].at)] = a->judged.of[i].sees;
    for (unsigned i = 0; i < BATCH_KINDS; i++) {
        const char *phase = batch_word((enum batch_phase)(i / BATCH_BUCKETS));
        const char *said = i / BATCH_BUCKETS == PHASE_NONE ? "phase unknown" : phase;
        bool none = isinf(sees[i]);
        if (!(sees[i] > 0))
            continue;
        if (none)
            report_line(&a->report,
                        "sees    %s, %" PRIu64
                        " rows: no turn that is slow by itself, as they differ too much",
                        said, batch_rows(i % BATCH_BUCKETS));
        else
            report_line(&a->report, "sees    %s, %" PRIu64 " rows: one turn from +%.0f%% on", said,
                        batch_rows(i % BATCH_BUCKETS), 100 * sees[i]);
        json_array_append_new(rows,
                              VALUE_OBJECT({ "phase", json_string(phase) },
                                           { "rows", value_u64(batch_rows(i % BATCH_BUCKETS)) },
                                           { "from", none ? json_null() : value_double(sees[i]) }));
    }
    report_member(&a->report, "sees", rows);
}

static void head(struct answer *a)
{
    const struct why_turns *t = &a->turns;
    uint64_t ns = why_turns_ns(t);
    report_line(&a->report, "run     %s, %zu steps in %.1f s, begun by %s", a->run->run->path, t->n,
                (double)ns / 1e9, t->n ? runs_source(t->all[t->n - 1].at.source) : "nothing");
    report_member(&a->report, "run", value_text(a->run->run->path));
    say_judged(a);
    if (t->n_by_step)
        report_line(&a->report,
                    "        of %zu steps the engine says no requests: their turn is the step from "
                    "its begin to its end, without what lies between two",
                    t->n_by_step);
    runs_say_lent(&a->report, a->run);
    report_member(&a->report, "n_by_step", value_u64(t->n_by_step));
}

static void usual(struct answer *a)
{
    json_t *kinds = json_array();
    size_t rare = 0;
    bool host = false;
    for (unsigned i = 0; i < BATCH_KINDS; i++) {
        if (a->kinds[i].n >= LEAST) {
            say_kind(a, i, kinds);
            host |= why_sum_how(&a->kinds[i].sum) == HOW_HOST;
        } else {
            rare += a->kinds[i].n;
        }
    }
    if (rare)
        report_line(&a->report, "rare    %zu turns are of kinds of batch with fewer than %u", rare,
                    LEAST);
    if (host && *a->run->marks.alone)
        report_line(&a->report, "host    nothing tells busy from idle: %s", a->run->marks.alone);
    else if (host)
        report_line(&a->report, "host    nothing tells busy from idle where a step runs beside "
                                "another: --trace=full, or dmi-ctl trace keep");
    report_member(&a->report, "usual", kinds);
    report_member(&a->report, "rare", value_u64(rare));
}

/* What is said of slow turns beside usual ones. */
struct beside {
    json_t *lines, *suspects; /* @suspects NULL: the turn is not slow */
};

/* The lines of @parts, of @n turns, beside the usual ones of the kind of @turn; and what may have made them slow, where a turn took @excess_ns (0: none) too long. */
static struct beside say_beside(struct answer *a, struct why_parts *parts, double n,
                                enum why_how how, const struct why_turn *turn, double excess_ns)
{
    const struct kind *k = kind_of(a, turn);
    bool known = k->sum.parts.n && k->n >= LEAST, alike = known && why_sum_how(&k->sum) == how;
    double all = (double)k->n;
    struct why_scene scene = { .names = &a->names,
                               .parts = parts,
                               .turns = n,
                               .how = how,
                               .usual = alike ? &k->sum : NULL,
                               .step = &turn->at,
                               .launches = (double)k->launches / all,
                               .graphs = (double)k->graphs / all,
                               .loads = (double)k->loads / all,
                               .allocations = (double)k->allocations / all,
                               .excess_ns = excess_ns };
    struct beside out = { NULL, NULL };
    if (!known)
        report_line(&a->report, "        no usual account of its kind of batch is known");
    else if (!alike)
        report_line(&a->report,
                    "        by %s, and the usual account by %s: lines are not compared",
                    why_how_words(how), why_how_words(why_sum_how(&k->sum)));
    out.lines = why_lines(&a->report, &a->names, parts, n, how, scene.usual);
    if (excess_ns > 0)
        out.suspects = why_suspects(&a->report, &scene);
    return out;
}

/* Slow turns, one or several in a row. */
static void say_slow_one(struct answer *a, size_t i, json_t *to)
{
    const struct why_slow *slow = &a->judged.slow[i];
    struct why_sum *sum = &a->slow[i];
    const struct why_turn *first = &a->turns.all[slow->first], *last = first + slow->n - 1;
    enum why_how how = why_sum_how(sum);
    double n = (double)slow->n, ns = slow->expected_ns + slow->excess_ns;
    if (slow->n == 1)
        report_line(&a->report, "%-7zu step %" PRIu64 ": %.3f ms in place of %.3f", i + 1,
                    first->at.number, ns / 1e6, slow->expected_ns / 1e6);
    else
        report_line(&a->report,
                    "%-7zu steps %" PRIu64 " to %" PRIu64
                    ", %zu in a row: %.3f ms each in place of %.3f; %.3f ms more in all",
                    i + 1, first->at.number, last->at.number, slow->n, ns / n / 1e6,
                    slow->expected_ns / n / 1e6, slow->excess_ns / 1e6);
    struct beside said =
        say_beside(a, &sum->parts, (double)sum->how[how], how, first, slow->excess_ns / n);
    report_line(&a->report, "        next: dmi-trace show %s --step %" PRIu64, a->run->run->path,
                first->at.number);
    json_array_append_new(to,
                          VALUE_OBJECT({ "first", value_u64(first->at.number) },
                                       { "last", value_u64(last->at.number) },
                                       { "turns", value_u64(slow->n) }, { "ns", value_double(ns) },
                                       { "expected_ns", value_double(slow->expected_ns) },
                                       { "excess_ns", value_double(slow->excess_ns) },
                                       { "by", json_string(why_how_words(how)) },
                                       { "lines", said.lines }, { "suspects", said.suspects }));
}

static void say_slow(struct answer *a)
{
    json_t *rows = json_array();
    for (size_t i = 0; i < a->n_shown; i++)
        say_slow_one(a, i, rows);
    report_line(&a->report, "%zu of %zu turns are slow%s", a->judged.n_slow_turns,
                a->turns.none[TURN_IS],
                a->n_shown < a->judged.n_slow ? "; --all lists the others" : "");
    report_member(&a->report, "slow", rows);
}

/* The step beside those of its kind. Return: whether the run has it, with a turn. */
static bool say_step(struct answer *a)
{
    struct why_account *one = NULL;
    for (size_t i = 0; i < a->n_accounts && !one; i++)
        one = a->accounts[i].whose == OF_STEP ? &a->accounts[i] : NULL;
    if (!one)
        return false;
    const struct why_verdict *v = &a->judged.of[one->turn - a->turns.all];
    bool judged = v->state == JUDGE_JUDGED || v->state == JUDGE_RARE;
    if (judged)
        report_line(&a->report, "step    %" PRIu64 ": %.3f ms in place of %.3f, which is %s",
                    a->step, (double)why_turn_ns(one->turn) / 1e6, v->expected_ns / 1e6,
                    v->slow ? "slow" : "not slow");
    else
        report_line(&a->report, "step    %" PRIu64 ": %.3f ms, not judged", a->step,
                    (double)why_turn_ns(one->turn) / 1e6);
    a->slow_step = v->slow;
    struct beside said = say_beside(a, &one->parts, 1, one->how, one->turn,
                                    v->slow ? (double)why_turn_ns(one->turn) - v->expected_ns : 0);
    report_member(
        &a->report, "step",
        VALUE_OBJECT({ "number", value_u64(a->step) }, { "ns", value_u64(why_turn_ns(one->turn)) },
                     { "expected_ns", judged ? value_double(v->expected_ns) : json_null() },
                     { "slow", judged ? json_boolean(v->slow) : json_null() },
                     { "by", json_string(why_how_words(one->how)) }, { "lines", said.lines },
                     { "suspects", said.suspects ? said.suspects : json_array() }));
    return true;
}

static void forget(struct answer *a)
{
    for (size_t i = 0; i < BATCH_KINDS; i++) {
        free(a->kinds[i].turns);
        free(a->kinds[i].sum.parts.all);
    }
    for (size_t i = 0; a->slow && i < a->n_shown; i++)
        free(a->slow[i].parts.all);
    free(a->slow);
    why_accounts_deinit(a->accounts, a->n_accounts);
    free(a->accounts);
    why_names_deinit(&a->names);
    why_judged_deinit(&a->judged);
    why_turns_deinit(&a->turns);
    free(a);
}

struct asked {
    bool json, all;
    uint64_t step;
    size_t n_runs, n_found, n_judged, n_slow;
};

static int read_all(struct answer *a, const struct asked *asked)
{
    int r = why_turns_read(a->run, &a->turns);
    if (!r && !(a->failed = !why_judge(&a->turns, &a->judged)))
        sort_out(a);
    a->n_shown = a->step != WHY_ALL ? 0 : a->judged.n_slow;
    if (!asked->all && a->n_shown > SHOWN)
        a->n_shown = SHOWN;
    return r || a->failed ? r : account(a);
}

static int answer(struct answer *a, struct asked *asked)
{
    int r = read_all(a, asked);
    if (r)
        return r;
    if (a->failed) {
        complain("cannot read %s: %s", a->run->run->path, strerror(ENOMEM));
        return REPORT_IMPOSSIBLE;
    }
    if (asked->n_runs++ && !asked->json)
        putchar('\n');
    head(a);
    if (a->step == WHY_ALL) {
        say_sees(a);
        usual(a);
        say_slow(a);
    } else {
        asked->n_found += say_step(a);
    }
    asked->n_judged += a->judged.n_judged + a->judged.n_rare;
    asked->n_slow += a->step == WHY_ALL ? a->judged.n_slow_turns : a->slow_step;
    a->report.failed |= a->failed;
    return report_end(&a->report, 0);
}

static int why_run(const struct trace_run *t, void *ctx)
{
    struct asked *asked = ctx;
    if (!t->traced) {
        complain("%s: the run has no trace; dmi-run --trace makes one", t->run->path);
        return 0;
    }
    struct answer *a = calloc(1, sizeof *a);
    if (!a) {
        complain("cannot read %s: %s", t->run->path, strerror(ENOMEM));
        return REPORT_IMPOSSIBLE;
    }
    a->report.json = asked->json;
    a->run = t;
    a->step = asked->step;
    int r = answer(a, asked);
    forget(a);
    return r;
}

int trace_why(const char *path, bool json, bool all, uint64_t step)
{
    struct asked asked = { .json = json, .all = all, .step = step };
    int r = runs_each(path, why_run, &asked);
    if (r)
        return r;
    if (step != WHY_ALL && !asked.n_found && asked.n_runs) {
        complain("%s: no step with a turn has the number %" PRIu64
                 "; dmi-trace steps --each lists steps",
                 path, step);
        return REPORT_IMPOSSIBLE;
    }
    if (step == WHY_ALL && !asked.n_judged && asked.n_runs)
        complain("%s: no turn is judged: the judge learns from %u turns of one process", path,
                 JUDGE_FIRST);
    if (!asked.n_runs || (step == WHY_ALL && !asked.n_judged))
        return REPORT_IMPOSSIBLE;
    return asked.n_slow != 0;
}
