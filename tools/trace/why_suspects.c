/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/trace/why_suspects.h"

#include "core/any.h"
#include "core/sorted.h"

#include <stdlib.h>
#include <string.h>

#define LITTLE 0.1 /* of the excess: what explains less is not printed */
#define MOST   3u  /* that are printed */

/* ------------------------------------------------------------------------- what the account says */

/* Turns that @s->usual is the sum of. */
static double usual_turns(const struct why_scene *s)
{
    return (double)s->usual->how[why_sum_how(s->usual)];
}

static double usual_of(const struct why_scene *s, enum why_line_kind kind, uint32_t name)
{
    const struct why_parts *usual = &s->usual->parts;
    for (size_t i = 0; i < usual->n; i++)
        if (usual->all[i].kind == kind && usual->all[i].name == name)
            return (double)usual->all[i].ns / usual_turns(s);
    return 0;
}

static bool begins(const char *name, const char *with)
{
    return !strncmp(name, with, strlen(with));
}

/*
 * By how much parts of the kind are above usual ones. @wants: of those names alone; NULL: all. *@most: the name that is most above; may be NULL.
 */
static double above(const struct why_scene *s, enum why_line_kind kind,
                    bool (*wants)(const char *name), const char **most)
{
    double sum = 0, greatest = 0;
    for (size_t i = 0; i < s->parts->n; i++) {
        const struct why_part *p = &s->parts->all[i];
        const char *name = why_name(s->names, p->name);
        if (p->kind != kind || (wants && !wants(name)))
            continue;
        double ns = (double)p->ns / s->turns - usual_of(s, kind, p->name);
        sum += ns;
        if (most && ns > greatest) {
            greatest = ns;
            *most = name;
        }
    }
    return sum;
}

static bool is_launch(const char *name)
{
    return begins(name, "cuGraphLaunch");
}

static bool is_load(const char *name)
{
    return begins(name, "cuModuleLoad") || begins(name, "cuLibraryLoad") || begins(name, "cuLink");
}

static bool is_allocation(const char *name)
{
    return !is_launch(name) && !is_load(name);
}

/* Time of kernels, a turn, that @parts of @turns have and @others have not. *@most: the name with most of it; may be NULL. */
static double alone(const struct why_scene *s, const struct why_parts *parts, double turns,
                    const struct why_parts *others, const char **most)
{
    double sum = 0, greatest = 0;
    for (size_t i = 0; i < parts->n; i++) {
        const struct why_part *p = &parts->all[i];
        if (p->kind != LINE_BUSY || !p->name ||
            ANY(k, others->n, others->all[k].kind == LINE_BUSY && others->all[k].name == p->name))
            continue;
        double ns = (double)p->ns / turns;
        sum += ns;
        if (most && ns > greatest) {
            greatest = ns;
            *most = why_name(s->names, p->name);
        }
    }
    return sum;
}

/* Of kernels that usual turns have not; and of those that the slow ones lack. */
static double strange(const struct why_scene *s, const char **most)
{
    return alone(s, s->parts, s->turns, &s->usual->parts, most);
}

static double missing(const struct why_scene *s)
{
    return alone(s, &s->usual->parts, usual_turns(s), s->parts, NULL);
}

/* Does the account tell busy from idle? Else the device may have been busy whatever the thread did. */
static bool sees_device(const struct why_scene *s)
{
    return s->how != HOW_HOST;
}

/* ------------------------------------------------------------------------- suspects */

/* Nanoseconds of the excess of a turn that it explains; 0: none, or what must be there is not. *@name: for its words. */
typedef double evidence_fn(const struct why_scene *s, const char **name);
typedef bool against_fn(const struct why_scene *s);

static double evidence_REPLAY(const struct why_scene *s, const char **name)
{
    (void)name;
    bool left =
        !s->step->graph_launches && s->graphs > 0.5 && s->step->launches > 2 * s->launches + 1;
    double elsewhere = above(s, LINE_STOPPED, NULL, NULL) + above(s, LINE_CALL, NULL, NULL) +
                       above(s, LINE_OWN, NULL, NULL);
    return left ? s->excess_ns - (elsewhere > 0 ? elsewhere : 0) : 0;
}

static bool against_REPLAY(const struct why_scene *s)
{
    return s->graphs < 0.75;
}

static double evidence_STOPPED(const struct why_scene *s, const char **name)
{
    (void)name;
    return above(s, LINE_STOPPED, NULL, NULL);
}

static bool against_STOPPED(const struct why_scene *s)
{
    return above(s, LINE_BUSY, NULL, NULL) > s->excess_ns / 4;
}

static double evidence_LAUNCH(const struct why_scene *s, const char **name)
{
    return above(s, LINE_CALL, is_launch, name);
}

static bool against_LAUNCH(const struct why_scene *s)
{
    return s->step->loads || s->step->allocations;
}

static double evidence_LOAD(const struct why_scene *s, const char **name)
{
    return s->step->loads ? above(s, LINE_CALL, is_load, name) : 0;
}

static bool against_LOAD(const struct why_scene *s)
{
    return s->loads > 0.5;
}

static double evidence_ALLOCATION(const struct why_scene *s, const char **name)
{
    return s->step->allocations ? above(s, LINE_CALL, is_allocation, name) : 0;
}

static bool against_ALLOCATION(const struct why_scene *s)
{
    return s->allocations > 0.5;
}

static double evidence_NEW_KERNEL(const struct why_scene *s, const char **name)
{
    return strange(s, name) - missing(s);
}

static bool against_NEW_KERNEL(const struct why_scene *s)
{
    return missing(s) > strange(s, NULL) / 5;
}

static double evidence_KERNELS(const struct why_scene *s, const char **name)
{
    return above(s, LINE_BUSY, NULL, name) - strange(s, NULL);
}

static double idle_above(const struct why_scene *s)
{
    return above(s, LINE_RANGE, NULL, NULL) + above(s, LINE_CALL, NULL, NULL) +
           above(s, LINE_NOT_SEEN, NULL, NULL);
}

static bool against_KERNELS(const struct why_scene *s)
{
    return idle_above(s) > s->excess_ns / 4;
}

static double evidence_OWN(const struct why_scene *s, const char **name)
{
    return above(s, LINE_OWN, NULL, name);
}

static bool against_OWN(const struct why_scene *s)
{
    return above(s, LINE_BUSY, NULL, NULL) > s->excess_ns / 4;
}

static double evidence_RANGE(const struct why_scene *s, const char **name)
{
    double all = above(s, LINE_RANGE, NULL, name), one = 0;
    for (size_t i = 0; i < s->parts->n && sees_device(s); i++)
        if (s->parts->all[i].kind == LINE_RANGE && **name &&
            !strcmp(why_name(s->names, s->parts->all[i].name), *name))
            one = (double)s->parts->all[i].ns / s->turns -
                  usual_of(s, LINE_RANGE, s->parts->all[i].name);
    return one < all || all <= 0 ? one : all;
}

static bool against_RANGE(const struct why_scene *s)
{
    const char *name = "";
    double one = evidence_RANGE(s, &name);
    return above(s, LINE_RANGE, NULL, NULL) - one > one / 2;
}

static double evidence_LATE(const struct why_scene *s, const char **name)
{
    (void)name;
    return sees_device(s) ? above(s, LINE_WAIT, NULL, NULL) : 0;
}

static bool against_LATE(const struct why_scene *s)
{
    return idle_above(s) > s->excess_ns / 4;
}

static const struct suspect {
    const char *id, *words, *against, *next;
    evidence_fn *evidence;
    against_fn *is_against;
} suspects[] = {
#define SUSPECT(id, words, against, next)                                                          \
    { #id, words, against, next, evidence_##id, against_##id },
#include "tools/trace/suspects.def"
#undef SUSPECT
};

struct found {
    const struct suspect *suspect;
    double ns;
    const char *name;
};

static int by_ns(const void *pa, const void *pb)
{
    const struct found *a = pa, *b = pb;
    ORDER(b, a, ns);
    ORDER(a, b, suspect);
    return 0;
}

static void say(struct report *report, const struct why_scene *s, const struct found *f, bool first)
{
    const struct suspect *of = f->suspect;
    const char *at = strstr(of->words, "%s");
    int n = at ? (int)(at - of->words) : (int)strlen(of->words);
    report_line(report, "%s%.*s%s%s (%.3f of %.3f ms). Against it: %s",
                !first                      ? "        or: "
                : f->ns >= s->excess_ns / 2 ? "        likely: "
                                            : "        in part: ",
                n, of->words, at ? f->name : "", at ? at + 2 : "", f->ns / 1e6, s->excess_ns / 1e6,
                of->is_against(s) ? of->against : "nothing");
    if (first)
        report_line(report, "        look at: %s", of->next);
}

json_t *why_suspects(struct report *report, const struct why_scene *s)
{
    struct found all[N_OF(suspects)];
    size_t n = 0;
    json_t *rows = json_array();
    for (size_t i = 0; s->usual && i < N_OF(suspects); i++) {
        struct found f = { &suspects[i], 0, "" };
        f.ns = suspects[i].evidence(s, &f.name);
        f.ns = f.ns > s->excess_ns ? s->excess_ns : f.ns;
        if (f.ns >= LITTLE * s->excess_ns && f.ns > 0)
            all[n++] = f;
    }
    SORT(all, n, by_ns);
    for (size_t i = 0; i < n; i++) {
        if (i < MOST)
            say(report, s, &all[i], !i);
        json_array_append_new(
            rows,
            VALUE_OBJECT(
                { "suspect", json_string(all[i].suspect->id) }, { "name", value_text(all[i].name) },
                { "ns", value_double(all[i].ns) }, { "of_ns", value_double(s->excess_ns) },
                { "against", all[i].suspect->is_against(s) ? json_string(all[i].suspect->against)
                                                           : json_null() }));
    }
    if (!n && s->usual)
        report_line(report, "        nothing known fits");
    return rows;
}
