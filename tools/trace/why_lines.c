/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/trace/why_lines.h"

#include "core/grow.h"
#include "core/sorted.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define NAMED 3u /* names in a line */

/* ------------------------------------------------------------------------- sums */

const char *why_how_words(enum why_how how)
{
    static const char *const words[] = { "records", "sums", "host" };
    return words[how];
}

enum why_how why_sum_how(const struct why_sum *s)
{
    if (s->how[HOW_HOST] > s->how[HOW_RECORDS] + s->how[HOW_SUMS])
        return HOW_HOST;
    return s->how[HOW_RECORDS] >= s->how[HOW_SUMS] ? HOW_RECORDS : HOW_SUMS;
}

bool why_sum_add(struct why_sum *to, const struct why_account *one)
{
    bool added = true;
    for (size_t i = 0; one->how == why_sum_how(to) && i < one->parts.n && added; i++) {
        const struct why_part *p = &one->parts.all[i];
        added = why_parts_add(&to->parts, p->kind, p->name, p->ns);
    }
    return added;
}

/* ------------------------------------------------------------------------- lines */

/* As text such lines share one: what is shorter, as a share of the turn; beside usual ones what differs by less, as a share of all that differs. */
#define SMALL  0.01
#define LITTLE 0.03

/* A line: parts of one kind, and of one name where the kind has a line for each. */
struct line {
    enum why_line_kind kind;
    uint32_t name; /* 0: of all names */
    double ns, usual_ns;
    double weight; /* the heavier one comes first */
};

struct lines {
    struct line *all;
    size_t n, room;
};

static bool has_names(enum why_line_kind kind)
{
    return kind == LINE_CALL || kind == LINE_RANGE;
}

/* Return: false without memory. */
static bool add_line(struct lines *to, const struct why_part *part, double ns, double usual_ns)
{
    uint32_t name = has_names(part->kind) ? part->name : 0;
    size_t i = 0;
    while (i < to->n && (to->all[i].kind != part->kind || to->all[i].name != name))
        i++;
    if (i == to->n) {
        if (GROW(to->all, to->n, to->room))
            return false;
        to->all[to->n++] = (struct line){ .kind = part->kind, .name = name };
    }
    to->all[i].ns += ns;
    to->all[i].usual_ns += usual_ns;
    return true;
}

/* Busy ones first, and what is not known last; else the longer one; of those beside usual ones the one that is more above. */
static void weigh(struct lines *lines, bool beside)
{
    for (size_t i = 0; i < lines->n; i++) {
        struct line *l = &lines->all[i];
        l->weight = beside                     ? l->ns - l->usual_ns
                    : l->kind <= LINE_OWN      ? 1e18 - l->kind
                    : l->kind == LINE_NOT_SEEN ? -1
                                               : l->ns;
    }
}

static int by_weight(const void *pa, const void *pb)
{
    const struct line *a = pa, *b = pb;
    ORDER(b, a, weight);
    ORDER(a, b, kind);
    ORDER(a, b, name);
    return 0;
}

static const char *line_words(enum why_line_kind kind, bool apart)
{
    static const char *const words[LINE_KINDS] = { "device busy",
                                                   "device busy: DMI's kernels alone",
                                                   "device idle: no thread of the process ran",
                                                   "device idle: driver",
                                                   "device idle: the thread waits for it",
                                                   "device idle",
                                                   "device idle: between its kernels",
                                                   "device idle: not seen" };
    static const char *const host[LINE_KINDS] = {
        "", "",        "no thread of the process ran", "driver", "waits for the device", "host",
        "", "not seen"
    };
    return apart ? words[kind] : host[kind];
}

static int by_ns(const void *pa, const void *pb)
{
    const struct why_part *a = pa, *b = pb;
    ORDER(b, a, ns);
    ORDER(a, b, name);
    return 0;
}

/* The longest names of a line, as text; and all as JSON. */
static json_t *put_names(struct text *to, const struct why_names *known, const struct line *line,
                         const struct why_parts *parts, double turns)
{
    json_t *rows = json_array();
    size_t shown = 0, left = 0;
    for (size_t i = 0; i < parts->n; i++) {
        if (parts->all[i].kind != line->kind || !parts->all[i].name || has_names(line->kind))
            continue;
        double ns = (double)parts->all[i].ns / turns;
        json_array_append_new(
            rows, VALUE_OBJECT({ "name", value_text(why_name(known, parts->all[i].name)) },
                               { "ns", value_double(ns) }));
        if (shown == NAMED) {
            left++;
            continue;
        }
        text_printf(to, "%s%s %.3f", shown++ ? ", " : "", why_name(known, parts->all[i].name),
                    ns / 1e6);
    }
    if (left)
        text_printf(to, ", %zu more", left);
    return rows;
}

static void put_time(struct text *to, const struct line *line, bool beside)
{
    text_printf(to, "%9.3f ms  ", line->ns / 1e6);
    if (beside)
        text_printf(to, "%+9.3f ms  ", (line->ns - line->usual_ns) / 1e6);
}

/* A line as text. @names: of what is in it; may be empty. */
static void put_line(struct report *report, const struct line *line, const char *words,
                     const char *name, const struct text *names, bool beside)
{
    struct text all = { 0 };
    put_time(&all, line, beside);
    text_printf(&all, "%s", words);
    if (*name)
        text_printf(&all, "%s%s", line->kind == LINE_RANGE ? ": " : "  ", name);
    if (names->n)
        text_printf(&all, "  %.*s", (int)names->n, names->data);
    text_add(&all, "", 1);
    report->failed |= all.failed;
    report_line(report, "%s", all.failed ? "" : all.data);
    text_deinit(&all);
}

/* The lines of @parts and of usual ones, the heaviest first. Return: false without memory. */
static bool make_lines(struct lines *lines, struct why_parts *parts, double turns,
                       const struct why_sum *usual, double n_usual)
{
    bool made = true;
    SORT(parts->all, parts->n, by_ns);
    for (size_t i = 0; i < parts->n && made; i++)
        made = add_line(lines, &parts->all[i], (double)parts->all[i].ns / turns, 0);
    for (size_t i = 0; usual && i < usual->parts.n && made; i++)
        made = add_line(lines, &usual->parts.all[i], 0, (double)usual->parts.all[i].ns / n_usual);
    weigh(lines, usual != NULL);
    SORT(lines->all, lines->n, by_weight);
    return made;
}

/* Below this a line shares one: of a turn; beside usual ones of how much all differ. */
static double little_of(const struct lines *lines, bool beside)
{
    double ns = 0;
    for (size_t i = 0; i < lines->n; i++) {
        const struct line *l = &lines->all[i];
        ns += beside ? LITTLE * fabs(l->ns - l->usual_ns) : SMALL * l->ns;
    }
    return ns;
}

/* What shares a line. */
static void put_rest(struct report *report, const struct line *rest, size_t n, const char *words,
                     bool beside)
{
    char more[96];
    const struct text none = { 0 };
    if (beside)
        snprintf(more, sizeof more, "%zu lines more", n);
    else
        snprintf(more, sizeof more, "%s: %zu more", words, n);
    if (n)
        put_line(report, rest, more, "", &none, beside);
}

json_t *why_lines(struct report *report, const struct why_names *known, struct why_parts *parts,
                  double turns, enum why_how how, const struct why_sum *usual)
{
    bool apart = how != HOW_HOST, beside = usual != NULL;
    struct lines lines = { 0 };
    json_t *rows = json_array();
    report->failed |= !make_lines(&lines, parts, turns, usual, usual ? (double)usual->how[how] : 1);
    struct line rest = { .ns = 0 };
    double little_ns = little_of(&lines, beside);
    size_t n_rest = 0;
    for (size_t i = 0; i < lines.n; i++) {
        const struct line *l = &lines.all[i];
        const char *name = why_name(known, l->name), *what = line_words(l->kind, apart);
        struct text names = { 0 };
        json_t *of = put_names(&names, known, l, parts, turns);
        bool small = beside ? fabs(l->ns - l->usual_ns) < little_ns
                            : has_names(l->kind) && l->ns < little_ns;
        n_rest += small;
        rest.ns += small ? l->ns : 0;
        rest.usual_ns += small ? l->usual_ns : 0;
        if (!small)
            put_line(report, l, what, name, &names, beside);
        json_t *row = VALUE_OBJECT({ "what", json_string(what) }, { "name", value_text(name) },
                                   { "ns", value_double(l->ns) }, { "of", of });
        if (beside && row)
            json_object_set_new(row, "usual_ns", value_double(l->usual_ns));
        json_array_append_new(rows, row);
        text_deinit(&names);
    }
    put_rest(report, &rest, n_rest, line_words(LINE_RANGE, apart), beside);
    free(lines.all);
    return rows;
}
