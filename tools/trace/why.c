/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/trace/why.h"

#include "core/grow.h"
#include "core/sorted.h"
#include "tools/common/report.h"
#include "tools/trace/batch.h"
#include "tools/trace/why_account.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define SAMPLE                                                                                     \
    33u /* turns that a kind's account is the mean of, at most: those nearest to the median, up to half of all */
#define LEAST 8u /* turns that a kind has, or its account says nothing */
#define NAMED 3u /* names in a line */

/* Turns of one phase and size. */
struct kind {
    size_t *turns; /* indices, by time */
    size_t n, room;
    size_t first, n_sample; /* those that the account is of, in @turns */
    uint64_t median_ns;
    double noise;           /* 1.4826 times the median distance to the median, as a share of that */
    struct why_part *parts; /* sums over the sample */
    size_t n_parts, parts_room;
    size_t how[HOWS];
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
    size_t n_judged;
    bool failed; /* no memory */
};

/* ------------------------------------------------------------------------- kinds */

static const struct why_turns *sorted_turns; /* for by_turn_time() */

static int by_turn_time(const void *pa, const void *pb)
{
    const size_t *a = pa, *b = pb;
    uint64_t x = why_turn_ns(&sorted_turns->all[*a]), y = why_turn_ns(&sorted_turns->all[*b]);
    return x != y ? x < y ? -1 : 1 : *a < *b ? -1 : *a > *b;
}

static int by_value(const void *pa, const void *pb)
{
    const uint64_t *a = pa, *b = pb;
    return *a < *b ? -1 : *a > *b;
}

static uint64_t time_at(const struct answer *a, const struct kind *k, size_t i)
{
    return why_turn_ns(&a->turns.all[k->turns[i]]);
}

static void find_noise(struct answer *a, struct kind *k)
{
    uint64_t *off = calloc(k->n, sizeof *off);
    a->failed |= !off;
    for (size_t i = 0; off && i < k->n; i++) {
        uint64_t ns = time_at(a, k, i);
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
    sorted_turns = &a->turns;
    SORT(k->turns, k->n, by_turn_time);
    k->median_ns = time_at(a, k, k->n / 2);
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
        if (!(a->failed = GROW(k->turns, k->n, k->room)))
            k->turns[k->n++] = i;
    }
    for (size_t i = 0; i < BATCH_KINDS && !a->failed; i++)
        if (a->kinds[i].n)
            choose(a, &a->kinds[i]);
}

/* ------------------------------------------------------------------------- accounts */

static void ask_for(struct answer *a, const struct why_turn *turn)
{
    if ((a->failed = a->failed || GROW(a->accounts, a->n_accounts, a->accounts_room)))
        return;
    a->accounts[a->n_accounts++] = (struct why_account){ .turn = turn };
}

static int by_begin(const void *pa, const void *pb)
{
    const struct why_account *a = pa, *b = pb;
    ORDER(a->turn, b->turn, begin_ns);
    ORDER(a->turn, b->turn, at.number);
    return 0;
}

static void add_part(struct answer *a, struct kind *k, const struct why_part *part)
{
    size_t i = 0;
    while (i < k->n_parts && (k->parts[i].kind != part->kind || k->parts[i].name != part->name))
        i++;
    if (i == k->n_parts) {
        if ((a->failed = a->failed || GROW(k->parts, k->n_parts, k->parts_room)))
            return;
        k->parts[k->n_parts++] = (struct why_part){ .kind = part->kind, .name = part->name };
    }
    k->parts[i].ns += part->ns;
}

static const struct kind *kind_of(const struct answer *a, const struct why_turn *turn)
{
    return &a->kinds[batch_kind_of(&turn->at)];
}

/* Is the account the step's that was asked for, and no sample's? */
static bool is_asked(const struct answer *a, const struct why_account *one)
{
    return one->turn->at.number == a->step;
}

/* What tells busy from idle in most of the sample: then it is of those turns alone. */
static enum why_how how_of(const struct kind *k)
{
    if (k->how[HOW_HOST] > k->how[HOW_RECORDS] + k->how[HOW_SUMS])
        return HOW_HOST;
    return k->how[HOW_RECORDS] >= k->how[HOW_SUMS] ? HOW_RECORDS : HOW_SUMS;
}

static void add_account(struct answer *a, const struct why_account *one)
{
    struct kind *k = &a->kinds[batch_kind_of(&one->turn->at)];
    for (size_t i = 0; one->how == how_of(k) && i < one->n; i++)
        add_part(a, k, &one->parts[i]);
}

static int account(struct answer *a)
{
    for (size_t i = 0; i < BATCH_KINDS; i++) {
        const struct kind *k = &a->kinds[i];
        for (size_t n = 0; k->n >= LEAST && n < k->n_sample; n++)
            if (a->turns.all[k->turns[k->first + n]].at.number != a->step)
                ask_for(a, &a->turns.all[k->turns[k->first + n]]);
    }
    for (size_t i = 0; a->step != WHY_ALL && i < a->turns.n; i++)
        if (a->turns.all[i].at.number == a->step && a->turns.all[i].none == TURN_IS)
            ask_for(a, &a->turns.all[i]);
    SORT(a->accounts, a->n_accounts, by_begin);
    int r =
        a->failed ? 0 : why_accounts_fill(a->run, &a->turns, &a->names, a->accounts, a->n_accounts);
    for (size_t i = 0; !r && i < a->n_accounts; i++)
        if (!is_asked(a, &a->accounts[i]))
            a->kinds[batch_kind_of(&a->accounts[i].turn->at)].how[a->accounts[i].how]++;
    for (size_t i = 0; !r && i < a->n_accounts; i++)
        if (!is_asked(a, &a->accounts[i]))
            add_account(a, &a->accounts[i]);
    return r;
}

/* ------------------------------------------------------------------------- lines */

#define SMALL 0.01 /* of the turn: as text what is shorter shares a line */

/* A line: parts of one kind, and of one name where the kind has a line for each. */
struct line {
    enum why_line_kind kind;
    uint32_t name; /* 0: of all names */
    double ns, usual_ns;
};

struct lines {
    struct line *all;
    size_t n, room;
};

static bool has_names(enum why_line_kind kind)
{
    return kind == LINE_CALL || kind == LINE_RANGE;
}

static void add_line(struct answer *a, struct lines *to, const struct why_part *part, double ns,
                     double usual_ns)
{
    uint32_t name = has_names(part->kind) ? part->name : 0;
    size_t i = 0;
    while (i < to->n && (to->all[i].kind != part->kind || to->all[i].name != name))
        i++;
    if (i == to->n) {
        if ((a->failed = a->failed || GROW(to->all, to->n, to->room)))
            return;
        to->all[to->n++] = (struct line){ .kind = part->kind, .name = name };
    }
    to->all[i].ns += ns;
    to->all[i].usual_ns += usual_ns;
}

/* Busy ones first; what is not known comes last; else the longer one. */
static int by_weight(const void *pa, const void *pb)
{
    const struct line *a = pa, *b = pb;
    int x = a->kind <= LINE_OWN        ? a->kind
            : a->kind == LINE_NOT_SEEN ? LINE_KINDS
                                       : LINE_CALL,
        y = b->kind <= LINE_OWN        ? b->kind
            : b->kind == LINE_NOT_SEEN ? LINE_KINDS
                                       : LINE_CALL;
    double u = a->ns + a->usual_ns, v = b->ns + b->usual_ns;
    return x != y ? x - y : u != v ? u > v ? -1 : 1 : 0;
}

static const char *line_words(enum why_line_kind kind, bool told_apart)
{
    static const char *const words[LINE_KINDS] = {
        "device busy",          "device busy: DMI's kernels alone",
        "device idle: driver",  "device idle: the thread waits for it",
        "device idle",          "device idle: between its kernels",
        "device idle: not seen"
    };
    static const char *const host[LINE_KINDS] = { "",     "", "driver",  "waits for the device",
                                                  "host", "", "not seen" };
    return told_apart ? words[kind] : host[kind];
}

static int by_ns(const void *pa, const void *pb)
{
    const struct why_part *a = pa, *b = pb;
    ORDER(b, a, ns);
    ORDER(a, b, name);
    return 0;
}

/* The longest names of a line, as text; and all as JSON. */
static json_t *say_names(struct text *to, const struct answer *a, const struct line *line,
                         const struct why_part *parts, size_t n, double turns)
{
    json_t *rows = json_array();
    size_t shown = 0, left = 0;
    for (size_t i = 0; i < n; i++) {
        if (parts[i].kind != line->kind || !parts[i].name || has_names(line->kind))
            continue;
        double ns = (double)parts[i].ns / turns;
        json_array_append_new(
            rows, VALUE_OBJECT({ "name", value_text(why_name(&a->names, parts[i].name)) },
                               { "ns", value_double(ns) }));
        if (shown == NAMED) {
            left++;
            continue;
        }
        text_printf(to, "%s%s %.3f", shown++ ? ", " : "", why_name(&a->names, parts[i].name),
                    ns / 1e6);
    }
    if (left)
        text_printf(to, ", %zu more", left);
    return rows;
}

/* @turns: that @parts are the sum of. @usual: of @n_usual turns, in place of which they are; NULL: they are the usual ones. */
static json_t *say_lines(struct answer *a, const struct why_part *parts, size_t n, double turns,
                         bool told_apart, const struct kind *usual, double n_usual)
{
    struct lines lines = { 0 };
    struct text words = { 0 };
    json_t *rows = json_array();
    for (size_t i = 0; i < n; i++)
        add_line(a, &lines, &parts[i], (double)parts[i].ns / turns, 0);
    for (size_t i = 0; usual && i < usual->n_parts; i++)
        add_line(a, &lines, &usual->parts[i], 0, (double)usual->parts[i].ns / n_usual);
    SORT(lines.all, lines.n, by_weight);
    struct line rest = { .ns = 0 };
    double all_ns = 0;
    size_t n_rest = 0;
    for (size_t i = 0; i < lines.n; i++)
        all_ns += lines.all[i].ns + lines.all[i].usual_ns;
    for (size_t i = 0; i < lines.n; i++) {
        const struct line *l = &lines.all[i];
        bool small = has_names(l->kind) && l->ns + l->usual_ns < SMALL * all_ns;
        const char *name = why_name(&a->names, l->name);
        words.n = 0;
        json_t *names = say_names(&words, a, l, parts, n, turns);
        text_add(&words, "", 1);
        a->failed |= words.failed;
        n_rest += small;
        rest.ns += small ? l->ns : 0;
        rest.usual_ns += small ? l->usual_ns : 0;
        const char *colon = *name && l->kind == LINE_RANGE ? ": " : *name ? "  " : "";
        if (small)
            ;
        else if (usual)
            report_line(&a->report, "%9.3f ms  %+9.3f ms  %s%s%s  %s", l->ns / 1e6,
                        (l->ns - l->usual_ns) / 1e6, line_words(l->kind, told_apart), colon, name,
                        words.failed ? "" : words.data);
        else
            report_line(&a->report, "%9.3f ms  %s%s%s  %s", l->ns / 1e6,
                        line_words(l->kind, told_apart), colon, name,
                        words.failed ? "" : words.data);
        json_t *row = VALUE_OBJECT({ "what", json_string(line_words(l->kind, told_apart)) },
                                   { "name", value_text(name) }, { "ns", value_double(l->ns) },
                                   { "of", names });
        if (usual && row)
            json_object_set_new(row, "usual_ns", value_double(l->usual_ns));
        json_array_append_new(rows, row);
    }
    if (n_rest && usual)
        report_line(&a->report, "%9.3f ms  %+9.3f ms  %s: %zu more", rest.ns / 1e6,
                    (rest.ns - rest.usual_ns) / 1e6, line_words(LINE_RANGE, told_apart), n_rest);
    else if (n_rest)
        report_line(&a->report, "%9.3f ms  %s: %zu more", rest.ns / 1e6,
                    line_words(LINE_RANGE, told_apart), n_rest);
    free(lines.all);
    text_deinit(&words);
    return rows;
}

/* ------------------------------------------------------------------------- a run */

static const char *how_words(enum why_how how)
{
    static const char *const words[] = { "records", "sums", "host" };
    return words[how];
}

static void say_kind(struct answer *a, unsigned number, json_t *to)
{
    struct kind *k = &a->kinds[number];
    enum batch_phase phase = (enum batch_phase)(number / BATCH_BUCKETS);
    uint64_t rows = batch_rows(number % BATCH_BUCKETS);
    enum why_how how = how_of(k);
    double n = (double)k->how[how];
    size_t left = k->how[HOW_RECORDS] + k->how[HOW_SUMS] + k->how[HOW_HOST] - k->how[how];
    SORT(k->parts, k->n_parts, by_ns);
    report_line(&a->report,
                "usual   %s, %" PRIu64
                " rows: %.3f ms, the median of %zu turns (noise %.0f%%); %zu of those near it:",
                phase ? batch_word(phase) : "phase unknown", rows, (double)k->median_ns / 1e6, k->n,
                100 * k->noise, k->how[how]);
    json_t *lines = say_lines(a, k->parts, k->n_parts, n, how != HOW_HOST, NULL, 1);
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
                     { "by", json_string(how_words(how)) }, { "lines", lines }));
}

static void head(struct answer *a)
{
    const struct why_turns *t = &a->turns;
    uint64_t ns = t->n ? t->all[t->n - 1].at.end_ns - t->all[0].begin_ns : 0;
    json_t *none = json_array();
    report_line(&a->report, "run     %s, %zu steps in %.1f s, begun by %s", a->run->run->path, t->n,
                (double)ns / 1e9, t->n ? runs_source(t->all[t->n - 1].at.source) : "nothing");
    report_line(&a->report, "turns   %zu of %zu steps", t->none[TURN_IS], t->n);
    for (unsigned i = TURN_IS + 1; i < TURN_REASONS; i++) {
        if (!t->none[i])
            continue;
        report_line(&a->report, "        %zu have none: %s", t->none[i],
                    why_none_words((enum why_none)i));
        json_array_append_new(
            none, VALUE_OBJECT({ "steps", value_u64(t->none[i]) },
                               { "why", json_string(why_none_words((enum why_none)i)) }));
    }
    if (t->n && t->all[0].by_step)
        report_line(&a->report,
                    "        the engine says no requests: a turn is a step from its begin "
                    "to its end, without what lies between two");
    runs_say_lent(&a->report, a->run);
    report_member(&a->report, "run", value_text(a->run->run->path));
    report_member(&a->report, "n_steps", value_u64(t->n));
    report_member(&a->report, "n_turns", value_u64(t->none[TURN_IS]));
    report_member(&a->report, "none", none);
    report_member(&a->report, "by_step", json_boolean(t->n && t->all[0].by_step));
}

static void usual(struct answer *a)
{
    json_t *kinds = json_array();
    size_t rare = 0;
    bool host = false;
    for (unsigned i = 0; i < BATCH_KINDS; i++) {
        if (a->kinds[i].n >= LEAST) {
            say_kind(a, i, kinds);
            a->n_judged += a->kinds[i].n;
            host |= how_of(&a->kinds[i]) == HOW_HOST;
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

/* The step beside those of its kind. Return: whether the run has it, with a turn. */
static bool say_step(struct answer *a)
{
    struct why_account *one = NULL;
    for (size_t i = 0; i < a->n_accounts && !one; i++)
        one = is_asked(a, &a->accounts[i]) ? &a->accounts[i] : NULL;
    if (!one)
        return false;
    const struct kind *k = kind_of(a, one->turn);
    bool known = k->n >= LEAST;
    enum why_how how = how_of(k);
    double n = (double)k->how[how];
    bool alike = known && how == one->how && n > 0;
    SORT(one->parts, one->n, by_ns);
    report_line(&a->report, "step    %" PRIu64 ": %.3f ms%s", a->step,
                (double)why_turn_ns(one->turn) / 1e6,
                known ? "" : "; no usual turn of its kind is known");
    if (known)
        report_line(&a->report, "        in place of %.3f ms", (double)k->median_ns / 1e6);
    if (known && !alike)
        report_line(&a->report, "        by %s, and usual ones by %s: lines are not compared",
                    how_words(one->how), how_words(how));
    json_t *lines = say_lines(a, one->parts, one->n, 1, one->how != HOW_HOST, alike ? k : NULL, n);
    report_member(&a->report, "step",
                  VALUE_OBJECT({ "number", value_u64(a->step) },
                               { "ns", value_u64(why_turn_ns(one->turn)) },
                               { "usual_ns", known ? value_u64(k->median_ns) : json_null() },
                               { "by", json_string(how_words(one->how)) }, { "lines", lines }));
    return true;
}

static void forget(struct answer *a)
{
    for (size_t i = 0; i < BATCH_KINDS; i++) {
        free(a->kinds[i].turns);
        free(a->kinds[i].parts);
    }
    why_accounts_deinit(a->accounts, a->n_accounts);
    free(a->accounts);
    why_names_deinit(&a->names);
    why_turns_deinit(&a->turns);
    free(a);
}

struct asked {
    bool json;
    uint64_t step;
    size_t n_answers, n_runs;
};

static int answer(struct answer *a, struct asked *asked)
{
    int r = why_turns_read(a->run, &a->turns);
    if (!r)
        sort_out(a);
    r = r ? r : account(a);
    if (r)
        return r;
    if (asked->n_runs++ && !asked->json)
        putchar('\n');
    head(a);
    bool found = a->step == WHY_ALL || say_step(a);
    if (a->step == WHY_ALL)
        usual(a);
    asked->n_answers += found && (a->step != WHY_ALL || a->n_judged);
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

int trace_why(const char *path, bool json, uint64_t step)
{
    struct asked asked = { .json = json, .step = step };
    int r = runs_each(path, why_run, &asked);
    if (r || asked.n_answers)
        return r;
    if (asked.n_runs && step != WHY_ALL)
        complain("%s: no step with a turn has the number %" PRIu64
                 "; dmi-trace steps --each lists steps",
                 path, step);
    else if (asked.n_runs)
        complain("%s: no kind of batch has %u turns: nothing can be said of them", path, LEAST);
    return REPORT_IMPOSSIBLE;
}
