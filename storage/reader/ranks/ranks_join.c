/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps and records of several ranks joined: what the ranks say of one step is one step, what they captured of one tensor
 * is one record. Source: docs/format.md 8.1.
 */
#include "core/cleanup.h"
#include "core/words.h"
#include "storage/reader/ranks/ranks_agree.h"
#include "storage/reader/reader_steps.h"

#include <dmi/dmi.h>
#include <dmi/dtype.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MOST_NAMED 20 /* findings of a kind */

enum { TP, PP = 2, DP = 4 }; /* ranks in dmi_step_entry */

/* ------------------------------------------------------------------------- steps */

/* A step of one run. */
struct member {
    int32_t dp, pp, tp;
    uint64_t number; /* the engine's */
    uint64_t nth;    /* among those of its run with that number */
    uint64_t time;   /* when it was said; does not fall within a run */
    uint32_t run;
    size_t index; /* in that run's selection */
    size_t lead;  /* index of the first of those that are one step */
};

/* Those that are one step lie together, the lowest rank first. */
static int member_order(const void *pa, const void *pb)
{
    const struct member *a = pa, *b = pb;
    ORDER(a, b, dp);
    ORDER(a, b, number);
    ORDER(a, b, nth);
    ORDER(a, b, pp);
    ORDER(a, b, tp);
    ORDER(a, b, run);
    ORDER(a, b, index);
    return 0;
}

/* Those of one run and number lie together, in their order. */
static int count_order(const void *pa, const void *pb)
{
    const struct member *a = pa, *b = pb;
    ORDER(a, b, run);
    ORDER(a, b, number);
    ORDER(a, b, dp);
    ORDER(a, b, pp);
    ORDER(a, b, tp);
    ORDER(a, b, index);
    return 0;
}

static bool same_count(const struct member *a, const struct member *b)
{
    return a->run == b->run && a->number == b->number && a->dp == b->dp && a->pp == b->pp &&
           a->tp == b->tp;
}

static struct member *list_members(const struct reader_ranks *k, size_t *n_out)
{
    size_t n = 0;
    for (size_t i = 0; i < k->n; i++)
        n += k->runs[i]->selection.steps.n;
    struct member *all = calloc(n + 1, sizeof *all);
    n = 0;
    for (uint32_t i = 0; all && i < k->n; i++) {
        uint64_t time = 0;
        for (size_t s = 0; s < k->runs[i]->selection.steps.n; s++) {
            const struct dmi_step_entry *e = k->runs[i]->selection.steps.all[s].entry;
            time = e->time_ns > time ? e->time_ns : time;
            all[n++] = (struct member){
                e->ranks[DP], e->ranks[PP], e->ranks[TP], e->step, 0, time, i, s, 0
            };
        }
    }
    *n_out = n;
    return all;
}

/* Whether two ranks say the same of the rows of a step. */
static bool same_rows(const struct reader_step *a, const struct reader_step *b)
{
    if (a->entry->n_rows != b->entry->n_rows || a->entry->n_spans != b->entry->n_spans)
        return false;
    for (uint32_t i = 0; i < a->entry->n_spans; i++) {
        const struct dmi_span_entry *x = &a->spans[i], *y = &b->spans[i];
        size_t n_x, n_y;
        const char *id_x = reader_span_id(a, i, &n_x), *id_y = reader_span_id(b, i, &n_y);
        if (x->first_position != y->first_position || x->first_row != y->first_row ||
            x->n_tokens != y->n_tokens ||
            (x->flags & DMI_SPAN_PADDING) != (y->flags & DMI_SPAN_PADDING) || n_x != n_y ||
            memcmp(id_x, id_y, n_x))
            return false;
    }
    return true;
}

static const struct reader_step *step_of(const struct reader_ranks *k, const struct member *m)
{
    return &k->runs[m->run]->selection.steps.all[m->index];
}

/* Says which members are one step: each gets the index of the first. */
static void group_steps(struct reader *r, struct member *all, size_t n)
{
    const struct reader_ranks *k = r->ranks;
    size_t n_named = 0;
    for (size_t i = 0, lead = 0; i < n; i++) {
        struct member *m = &all[i], *first = &all[lead];
        bool same = i && m->dp == first->dp && m->number == first->number && m->nth == first->nth;
        if (same && !same_rows(step_of(k, first), step_of(k, m))) {
            if (n_named++ < MOST_NAMED)
                reader_note(&r->notes, true, "ranks", -1, 0,
                            "step %" PRIu64 ": rank tp %d, pp %d says other rows than rank tp %d, "
                            "pp %d: they are not joined",
                            m->number, m->tp, m->pp, first->tp, first->pp);
            m->lead = i;
            continue;
        }
        lead = same ? lead : i;
        m->lead = lead;
    }
}

static int time_order(const void *pa, const void *pb, void *arg)
{
    const struct member *all = arg, *a = &all[*(const size_t *)pa], *b = &all[*(const size_t *)pb];
    ORDER(a, b, time);
    ORDER(a, b, run);
    ORDER(a, b, index);
    return 0;
}

/* The joined steps, in the order in which they were said. */
static int make_steps(struct reader *r, struct member *all, size_t n)
{
    struct reader_ranks *k = r->ranks;
    _cleanup_(freep) size_t *order = calloc(n + 1, sizeof *order);
    _cleanup_(freep) size_t *place = calloc(n + 1, sizeof *place); /* of a lead, in the result */
    size_t n_steps = 0;
    if (!order || !place)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++)
        if (all[i].lead == i)
            order[n_steps++] = i;
    qsort_r(order, n_steps, sizeof *order, time_order, all);
    free(r->selection.steps.all);
    r->selection.steps.all = calloc(n_steps + 1, sizeof *r->selection.steps.all);
    r->selection.steps.n = r->selection.steps.room = r->selection.steps.all ? n_steps : 0;
    if (!r->selection.steps.all)
        return -ENOMEM;
    for (size_t i = 0; i < n_steps; i++) {
        r->selection.steps.all[i] = *step_of(k, &all[order[i]]);
        r->selection.steps.all[i].outcomes = NULL;
        r->selection.steps.all[i].n_outcomes = 0;
        place[order[i]] = i;
    }
    for (size_t i = 0; i < k->n; i++) {
        free(k->step_of[i]);
        k->step_of[i] = calloc(k->runs[i]->selection.steps.n + 1, sizeof *k->step_of[i]);
        if (!k->step_of[i])
            return -ENOMEM;
    }
    for (size_t i = 0; i < n; i++)
        k->step_of[all[i].run][all[i].index] = place[all[i].lead];
    return 0;
}

static int join_steps(struct reader *r)
{
    size_t n;
    _cleanup_(freep) struct member *all = list_members(r->ranks, &n);
    if (!all)
        return -ENOMEM;
    qsort(all, n, sizeof *all, count_order);
    for (size_t i = 1; i < n; i++)
        all[i].nth = same_count(&all[i], &all[i - 1]) ? all[i - 1].nth + 1 : 0;
    qsort(all, n, sizeof *all, member_order);
    group_steps(r, all, n);
    return make_steps(r, all, n);
}

/* ------------------------------------------------------------------------- outcomes */

/* What any rank says of a span counts, the first rank's before others'. */
static int join_outcomes(struct reader *r)
{
    const struct reader_ranks *k = r->ranks;
    r->selection.steps.n_outcomes = r->selection.steps.n_ends = 0;
    for (size_t i = k->n; i-- > 0;) { /* of several the last counts: reader_attach_outcomes() */
        const struct reader *run = k->runs[i];
        for (size_t o = 0; o < run->selection.steps.n_outcomes; o++) {
            if (GROW(r->selection.steps.outcomes, r->selection.steps.n_outcomes,
                     r->selection.steps.outcomes_room))
                return -ENOMEM;
            struct reader_outcome *to = &r->selection.steps.outcomes[r->selection.steps.n_outcomes];
            *to = run->selection.steps.outcomes[o];
            to->step = k->step_of[i][to->step];
            to->place = r->selection.steps.n_outcomes++;
        }
        for (size_t e = 0; e < run->selection.steps.n_ends; e++) {
            if (GROW(r->selection.steps.ends, r->selection.steps.n_ends,
                     r->selection.steps.ends_room))
                return -ENOMEM;
            struct reader_end *to = &r->selection.steps.ends[r->selection.steps.n_ends++];
            *to = run->selection.steps.ends[e];
            to->after = to->after ? k->step_of[i][to->after - 1] + 1 : 0;
            to->place = r->selection.steps.n_ends; /* chunks of several runs have one number */
        }
    }
    reader_attach_outcomes(&r->selection.steps);
    return 0;
}

/* ------------------------------------------------------------------------- records */

/* A record of one run. */
struct run_record_of {
    uint64_t step;  /* ours, or the forward where it has none */
    uint64_t site;  /* key */
    int32_t dp, pp; /* -1: alike on all */
    int32_t layer;
    uint32_t occurrence;
    uint32_t nth; /* among those of its run that are alike otherwise */
    bool has_step;
    int32_t rank, tp; /* on the axis over which it is divided; tensor parallel */
    uint32_t run;
    size_t index;
};

static int same_tensor(const struct run_record_of *a, const struct run_record_of *b)
{
    ORDER(a, b, has_step);
    ORDER(a, b, step);
    ORDER(a, b, site);
    ORDER(a, b, layer);
    ORDER(a, b, occurrence);
    ORDER(a, b, dp);
    ORDER(a, b, pp);
    return 0;
}

static int nth_order(const void *pa, const void *pb)
{
    const struct run_record_of *a = pa, *b = pb;
    int c = same_tensor(a, b);
    if (c)
        return c;
    ORDER(a, b, run);
    ORDER(a, b, index);
    return 0;
}

static int entry_order(const void *pa, const void *pb)
{
    const struct run_record_of *a = pa, *b = pb;
    int c = same_tensor(a, b);
    if (c)
        return c;
    ORDER(a, b, nth);
    ORDER(a, b, rank);
    ORDER(a, b, tp);
    ORDER(a, b, run);
    return 0;
}

static const struct reader_record *record_of(const struct reader_ranks *k,
                                             const struct run_record_of *e)
{
    return &k->runs[e->run]->selection.records[e->index];
}

/* Ranks and sizes of a record's rank. */
static const int32_t *ranks_of(const struct reader_ranks *k, const struct run_record_of *e)
{
    const struct reader_record *rec = record_of(k, e);
    return rec->step ? rec->step->entry->ranks : k->about[e->run].ranks;
}

/* The axis over which a site's records are joined; DMI_AXIS_COUNT: all that there is, is alike on all ranks. */
static uint32_t axis_of(const struct reader_ranks *k, const struct dmi_site *site)
{
    bool joined = site->shard != DMI_SHARD_NONE && k->only[site->shard_axis] < 0;
    return joined ? site->shard_axis : DMI_AXIS_COUNT;
}

static struct run_record_of *list_entries(const struct reader *r, size_t *n_out)
{
    const struct reader_ranks *k = r->ranks;
    size_t n = 0;
    for (size_t i = 0; i < k->n; i++)
        n += k->runs[i]->selection.n_records;
    struct run_record_of *all = calloc(n + 1, sizeof *all);
    n = 0;
    for (uint32_t i = 0; all && i < k->n; i++)
        for (size_t x = 0; x < k->runs[i]->selection.n_records; x++) {
            const struct reader_record *rec = &k->runs[i]->selection.records[x];
            uint32_t site = k->site_of[i][rec->at.site], axis = axis_of(k, &r->said.sites[site]);
            struct run_record_of *e = &all[n++];
            *e = (struct run_record_of){ .site = k->site_key[site],
                                         .layer = rec->at.layer,
                                         .occurrence = rec->at.occurrence,
                                         .has_step = rec->step != NULL,
                                         .step = rec->at.forward,
                                         .run = i,
                                         .index = x };
            if (rec->step)
                e->step = k->step_of[i][rec->step - k->runs[i]->selection.steps.all];
            const int32_t *ranks = ranks_of(k, e);
            e->dp = axis == DMI_AXIS_DP ? -1 : ranks[DP];
            e->pp = axis == DMI_AXIS_PP ? -1 : ranks[PP];
            e->tp = ranks[TP];
            e->rank = axis < DMI_AXIS_COUNT ? ranks[2 * axis] : 0;
        }
    *n_out = n;
    return all;
}

/* ------------------------------------------------------------------------- one tensor of several ranks */

/* What cannot be joined, by site. */
struct trouble {
    uint64_t n_incomplete, n_unlike, n_differ;
    int32_t rank, size; /* the first that is missing */
    char differ[160];   /* where bits differ, the first time */
    char unlike[640];   /* what cannot be joined, the first time */
};

struct joining {
    struct reader *r;
    struct trouble *troubles; /* by our site */
};

/* Ranks that have all of a tensor have the same bits. */
static void compare(struct joining *j, const struct run_record_of *a, const struct run_record_of *b,
                    const struct dmi_site *site)
{
    const struct reader_ranks *k = j->r->ranks;
    const struct reader_record *x = record_of(k, a), *y = record_of(k, b);
    if (x->at.hash == y->at.hash)
        return;
    struct trouble *t = &j->troubles[site->id];
    if (!t->n_differ++)
        snprintf(t->differ, sizeof t->differ,
                 "layer %d, step %" PRIu64 ": tp rank %d has other bits than tp rank %d",
                 x->at.layer, x->step ? x->step->entry->step : 0, b->tp, a->tp);
}

/* Notes that two entries are no parts of one tensor. @size: the ranks say different sizes of the axis, or more ranks. */
static void say_unlike(struct joining *j, const struct run_record_of *a,
                       const struct run_record_of *b, const struct dmi_site *site, bool size)
{
    const struct reader_ranks *k = j->r->ranks;
    const struct run_record_of *both[] = { b, a };
    struct trouble *t = &j->troubles[site->id];
    uint32_t axis = axis_of(k, site);
    const struct reader_record *rec = record_of(k, a);
    if (t->n_unlike++)
        return;
    size_t n = (size_t)snprintf(t->unlike, sizeof t->unlike, "layer %d, step %" PRIu64 ": ",
                                rec->at.layer, rec->step ? rec->step->entry->step : 0);
    for (int i = 0; i < 2; i++) {
        const int32_t *ranks = ranks_of(k, both[i]);
        const struct reader_record *one = record_of(k, both[i]);
        n += (size_t)snprintf(t->unlike + n, sizeof t->unlike - n, "%srank %s ", i ? ", and " : "",
                              rank_text(ranks).text);
        if (size)
            snprintf(t->unlike + n, sizeof t->unlike - n, "is %s rank %d of %d",
                     dmi_axis_name(axis), ranks[2 * axis], ranks[2 * axis + 1]);
        else
            snprintf(t->unlike + n, sizeof t->unlike - n, "has %s%s",
                     one->kept ? "kept rows of " : "", shape_text(one).text);
        n = strlen(t->unlike);
    }
}

/* Whether entries of one tensor, @n of them, are of one shape and number of ranks; else says so. */
static bool are_alike(struct joining *j, const struct run_record_of *all, size_t n,
                      const struct dmi_site *site)
{
    const struct reader_ranks *k = j->r->ranks;
    uint32_t axis = axis_of(k, site);
    bool joined = axis < DMI_AXIS_COUNT;
    uint32_t free = joined && site->shard == DMI_SHARD_DIM ? site->shard_dim : UINT32_MAX;
    for (size_t i = 1; i < n; i++) {
        bool size = joined && reader_n_ranks(ranks_of(k, &all[i]), axis) !=
                                  reader_n_ranks(ranks_of(k, all), axis);
        if (!size && reader_same_shape(record_of(k, all), record_of(k, &all[i]), free))
            continue;
        say_unlike(j, all, &all[i], site, size);
        return false;
    }
    if (!joined || all[n - 1].rank < reader_n_ranks(ranks_of(k, all), axis))
        return true;
    say_unlike(j, all, &all[n - 1], site, true);
    return false;
}

static int add_part(struct reader_ranks *k, const struct run_record_of *e)
{
    return PUSH(k->parts, k->n_parts, k->parts_room, 64, (struct reader_part){ e->run, e->index });
}

/* The shape of what the parts are together. Return: whether they can be one. */
static bool merge_shape(const struct reader_ranks *k, const struct dmi_site *site,
                        struct reader_record *rec)
{
    const struct reader_part *parts = &k->parts[rec->segment];
    uint32_t d = site->shard == DMI_SHARD_DIM ? site->shard_dim : UINT32_MAX;
    uint64_t n = dmi_dtype_bytes(rec->at.dtype);
    if (d != UINT32_MAX && (d >= rec->at.n_dims || d < rec->at.n_row_dims))
        return false;
    for (uint32_t i = 1; i < rec->chunk; i++) {
        const struct reader_record *p = &k->runs[parts[i].run]->selection.records[parts[i].index];
        if (!reader_same_shape(rec, p, d) ||
            (d != UINT32_MAX &&
             __builtin_add_overflow(rec->at.dims[d], p->at.dims[d], &rec->at.dims[d])))
            return false;
    }
    for (uint32_t i = 0; i < rec->at.n_dims; i++)
        if (__builtin_mul_overflow(n, (uint64_t)rec->at.dims[i], &n))
            return false;
    rec->at.n_bytes = n;
    return true;
}

/* The records of one tensor, @n of them, as one record; or why not. */
static int join_tensor(struct joining *j, const struct run_record_of *all, size_t n)
{
    struct reader *r = j->r;
    struct reader_ranks *k = r->ranks;
    const struct dmi_site *site =
        &r->said.sites[k->site_of[all[0].run][record_of(k, all)->at.site]];
    uint32_t axis = axis_of(k, site);
    int32_t size = axis < DMI_AXIS_COUNT ? reader_n_ranks(ranks_of(k, all), axis) : 1, next = 0;
    struct reader_contradiction *contradiction =
        reader_contradiction_of(k, all->site, all->dp, all->pp);
    if (contradiction)
        contradiction->n += n;
    if (contradiction || !are_alike(j, all, n, site))
        return 0;
    struct reader_record rec = *record_of(k, &all[0]);
    rec.segment = (uint32_t)k->n_parts;
    rec.chunk = 0;
    rec.n_stored = 0;
    for (size_t i = 0; i < n; i++) {
        rec.n_stored += record_of(k, &all[i])->n_stored;
        if (i && all[i].rank == all[i - 1].rank) {
            compare(j, &all[i - 1], &all[i], site);
            continue;
        }
        if (all[i].rank != next)
            break;
        next++;
        rec.chunk++;
        if (add_part(k, &all[i]))
            return -ENOMEM;
    }
    struct trouble *t = &j->troubles[site->id];
    if (axis < DMI_AXIS_COUNT && next < size) {
        t->rank = t->n_incomplete ? t->rank : next;
        t->size = size;
        t->n_incomplete++;
        return 0;
    }
    if (axis < DMI_AXIS_COUNT && !merge_shape(k, site, &rec)) {
        say_unlike(j, all, &all[n - 1], site, false);
        return 0;
    }
    if (GROW(r->selection.records, r->selection.n_records, r->selection.records_room))
        return -ENOMEM;
    rec.at.site = site->id;
    rec.step = all[0].has_step ? &r->selection.steps.all[all[0].step] : NULL;
    if (rec.step)
        rec.at.step = rec.step->entry->sequence;
    r->selection.records[r->selection.n_records++] = rec;
    return 0;
}

static void tell(struct joining *j)
{
    struct reader *r = j->r;
    const struct reader_ranks *k = r->ranks;
    for (size_t i = 0; i < k->n_contradictions; i++)
        if (k->contradictions[i].n)
            reader_note(&r->notes, true, "ranks", -1, 0, "site %s: %s: %" PRIu64 " %s left out",
                        r->said.sites[k->contradictions[i].site].name, k->contradictions[i].text,
                        k->contradictions[i].n,
                        word_for(k->contradictions[i].n, "record is", "records are"));
    for (size_t s = 0; s < r->said.n_sites; s++) {
        const struct trouble *t = &j->troubles[s];
        const struct dmi_site *site = &r->said.sites[s];
        if (t->n_incomplete)
            reader_note(
                &r->notes, true, "ranks", -1, 0,
                "site %s: of %" PRIu64 " records the part of %s rank %d (of %d) is missing, "
                "so that they cannot be joined and are left out",
                site->name, t->n_incomplete, dmi_axis_name(site->shard_axis), t->rank, t->size);
        if (t->n_unlike)
            reader_note(&r->notes, true, "ranks", -1, 0,
                        "site %s: the parts of %" PRIu64 " %s cannot be joined and are left out; "
                        "first in %s",
                        site->name, t->n_unlike, word_for(t->n_unlike, "record", "records"),
                        t->unlike);
        if (t->n_differ)
            reader_note(&r->notes, true, "ranks", -1, 0,
                        "site %s: ranks that have all of it differ in %" PRIu64
                        " records; first in %s; the lowest rank's is shown",
                        site->name, t->n_differ, t->differ);
    }
}

/* Where a record stands among the steps: those said up to it. */
static size_t place_of(const struct reader *r, const struct reader_record *rec)
{
    if (rec->step)
        return (size_t)(rec->step - r->selection.steps.all) + 1;
    size_t i;
    SEARCH(i, r->selection.steps.n, r->selection.steps.all[i].entry->time_ns <= rec->at.time_ns);
    return i;
}

static int record_order(const void *pa, const void *pb, void *arg)
{
    const struct reader *r = arg;
    const struct reader_record *a = pa, *b = pb;
    size_t at_a = place_of(r, a), at_b = place_of(r, b);
    if (at_a != at_b)
        return at_a < at_b ? -1 : 1;
    const struct reader_part *x = &r->ranks->parts[a->segment], *y = &r->ranks->parts[b->segment];
    ORDER(x, y, run);
    ORDER(x, y, index); /* in the order of launches */
    return 0;
}

static int join_records(struct reader *r)
{
    size_t n;
    _cleanup_(freep) struct run_record_of *all = list_entries(r, &n);
    _cleanup_(freep) struct trouble *troubles = calloc(r->said.n_sites + 1, sizeof *troubles);
    struct joining j = { r, troubles };
    if (!all || !troubles || reader_find_contradictions(r))
        return -ENOMEM;
    r->selection.n_records = r->ranks->n_parts = 0;
    qsort(all, n, sizeof *all, nth_order);
    for (size_t i = 1; i < n; i++)
        if (all[i].run == all[i - 1].run && !same_tensor(&all[i], &all[i - 1]))
            all[i].nth = all[i - 1].nth + 1;
    qsort(all, n, sizeof *all, entry_order);
    int res = 0;
    for (size_t i = 0, end; !res && i < n; i = end) {
        for (end = i + 1;
             end < n && all[end].nth == all[i].nth && !same_tensor(&all[end], &all[i]);)
            end++;
        res = join_tensor(&j, all + i, end - i);
    }
    if (!res && r->selection.n_records)
        qsort_r(r->selection.records, r->selection.n_records, sizeof *r->selection.records,
                record_order, r);
    tell(&j);
    return res;
}

int reader_join_ranks(struct reader *r)
{
    int res = join_steps(r);
    if (!res)
        res = join_outcomes(r);
    return res ? res : join_records(r);
}
