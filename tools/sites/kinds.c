/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/sites/kinds.h"

#include "core/any.h"
#include "core/cleanup.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------- which are alike */

/* Which kernels a forward launches; by name, as one name may be several functions. */
static void mark_kernels(const struct recording *rec, const struct forward *f, bool *used)
{
    for (uint32_t l = f->first; l <= f->last; l++)
        for (size_t k = 0; k < rec->n_kernels; k++)
            used[k] =
                used[k] || !strcmp(rec->kernels[k].name, recording_name(rec, &rec->launches[l]));
}

/* Half of what either launches is launched by both. */
static bool alike(const bool *a, const bool *b, size_t n)
{
    size_t both = 0, either = 0;
    for (size_t i = 0; i < n; i++) {
        both += a[i] && b[i];
        either += a[i] || b[i];
    }
    return 2 * both >= either;
}

static int sort_forwards(struct err *err, const struct recording *rec, struct forwards *all,
                         struct kinds *out)
{
    _cleanup_(freep) bool *used = calloc((all->n + 1) * (rec->n_kernels + 1), sizeof *used);
    if (!used)
        return err_set(err, -ENOMEM, "no memory");
    for (uint32_t i = 0; i < all->n; i++) {
        struct forward *f = &all->at[i];
        f->kind = UINT32_MAX;
        mark_kernels(rec, f, used + i * rec->n_kernels);
        for (uint32_t k = 0; k < i && f->kind == UINT32_MAX; k++)
            if (alike(used + i * rec->n_kernels, used + k * rec->n_kernels, rec->n_kernels))
                f->kind = all->at[k].kind;
        if (f->kind == UINT32_MAX && out->n == KINDS_MAX)
            return err_set(err, -E2BIG, "more than %u kinds of forwards", KINDS_MAX);
        if (f->kind == UINT32_MAX)
            f->kind = out->n++;
    }
    return 0;
}

/* ------------------------------------------------------------------------- what begins them */

static bool is_named(const struct recording *rec, uint32_t launch, const char *name)
{
    return !strcmp(recording_name(rec, &rec->launches[launch]), name);
}

/* Launches of @name in [from, end). */
static uint32_t count(const struct recording *rec, uint32_t from, uint32_t end, const char *name)
{
    uint32_t n = 0;
    for (uint32_t l = from; l < end; l++)
        n += is_named(rec, l, name);
    return n;
}

/* The launch from which on a forward may begin: the one after what the forward before shows. */
static uint32_t gap_of(const struct forwards *all, uint32_t i)
{
    return i ? all->at[i - 1].last + 1 : 0;
}

/*
 * Does a launch of @name come before forward @i shows something? *@good becomes false where it comes within the forward.
 * Between two there may be more: engines warm up, or serve what the reference does not have.
 */
static bool comes_before(const struct recording *rec, const struct forwards *all, uint32_t i,
                         const char *name, bool *good)
{
    const struct forward *f = &all->at[i];
    uint32_t n = count(rec, gap_of(all, i), f->first + 1, name);
    if (count(rec, f->first + 1, f->last + 1, name))
        *good = false;
    return n != 0;
}

/*
 * Which forwards @name begins. Return: false where it runs elsewhere too. After the last forward there may be one more,
 * that shows nothing; but what runs there and is not itself the first to show something may as well end forwards.
 */
static bool begins(const struct recording *rec, const struct forwards *all, const char *name,
                   bool *begun)
{
    bool good = true, shows = true;
    for (uint32_t i = 0; i < all->n && good; i++) {
        begun[i] = comes_before(rec, all, i, name, &good);
        shows = shows && (!begun[i] || is_named(rec, all->at[i].first, name));
    }
    return good &&
           (shows || !count(rec, all->at[all->n - 1].last + 1, (uint32_t)rec->n_launches, name));
}

/* Are those that @begun says the forwards of this kind, and no others? A warm-up may have been of any kind. */
static bool is_kind(const struct forwards *all, uint32_t kind, const bool *begun)
{
    return !ANY(i, all->n, begun[i] != (all->at[i].kind == kind) && (i || !begun[i]));
}

/* The last launch of @name at which forward @i may begin. */
static uint32_t begin_of(const struct recording *rec, const struct forwards *all, uint32_t i,
                         const char *name)
{
    uint32_t l = all->at[i].first;
    while (l > gap_of(all, i) && !is_named(rec, l, name))
        l--;
    return l;
}

/*
 * With several forwards the first such kernel counts, so that all of the forward follows it; with one alone, much runs
 * once that will never run again, and the last counts, which is near to the model's first tensor.
 */
static const char *find_begin(const struct recording *rec, const struct forwards *all,
                              uint32_t kind, uint32_t n_forwards, bool *begun)
{
    const char *found = NULL;
    uint32_t i = 0;
    while (all->at[i].kind != kind)
        i++;
    for (uint32_t l = gap_of(all, i); l <= all->at[i].first; l++) {
        const char *name = recording_name(rec, &rec->launches[l]);
        if (begin_of(rec, all, i, name) != l || (found && n_forwards > 1))
            continue;
        if (begins(rec, all, name, begun) && is_kind(all, kind, begun))
            found = name;
    }
    return found;
}

/* ------------------------------------------------------------------------- kinds that one kernel begins */

/* Are the forwards that @begun says all of their kinds, those of @kind among them? */
static bool is_several_kinds(const struct forwards *all, uint32_t kind, const bool *begun)
{
    for (uint32_t i = 0; i < all->n; i++) {
        if (all->at[i].kind == kind && !begun[i])
            return false;
        for (uint32_t k = 0; begun[i] && k < all->n; k++)
            if (all->at[k].kind == all->at[i].kind && !begun[k])
                return false;
    }
    return true;
}

/* Kernels of other names with each size of a batch: what the same kernel begins is one kind all the same. */
static void join_kind(const struct recording *rec, struct forwards *all, uint32_t kind, bool *begun)
{
    uint32_t i = 0;
    while (i < all->n && all->at[i].kind != kind)
        i++;
    for (uint32_t l = i < all->n ? gap_of(all, i) : 1; i < all->n && l <= all->at[i].first; l++) {
        if (!begins(rec, all, recording_name(rec, &rec->launches[l]), begun) ||
            !is_several_kinds(all, kind, begun))
            continue;
        for (uint32_t k = 0; k < all->n; k++)
            if (begun[k])
                all->at[k].kind = kind;
        return;
    }
}

/* Numbers of kinds without gaps. */
static void renumber(struct forwards *all, struct kinds *kinds)
{
    uint32_t next = 0, to[KINDS_MAX];
    memset(to, 0xff, sizeof to);
    for (uint32_t i = 0; i < all->n; i++) {
        uint32_t *number = &to[all->at[i].kind];
        *number = *number == UINT32_MAX ? next++ : *number;
        all->at[i].kind = *number;
    }
    kinds->n = next;
}

static uint32_t n_of_kind(const struct forwards *all, uint32_t kind)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < all->n; i++)
        n += all->at[i].kind == kind;
    return n;
}

static void join_kinds(const struct recording *rec, struct forwards *all, struct kinds *kinds,
                       bool *begun)
{
    for (uint32_t k = 0; k < kinds->n; k++)
        if (n_of_kind(all, k) && !find_begin(rec, all, k, n_of_kind(all, k), begun))
            join_kind(rec, all, k, begun);
    renumber(all, kinds);
}

/* The next launch after @launch that begins any forward, one that shows nothing too. */
static uint32_t next_begin(const struct recording *rec, const struct kinds *kinds, uint32_t launch)
{
    for (uint32_t l = launch + 1; l < rec->n_launches; l++)
        for (uint32_t k = 0; k < kinds->n; k++)
            if (kinds->at[k].begin && is_named(rec, l, kinds->at[k].begin))
                return l;
    return (uint32_t)rec->n_launches;
}

static void set_ranges(const struct recording *rec, struct forwards *all, const struct kinds *kinds)
{
    for (uint32_t i = 0; i < all->n; i++) {
        struct forward *f = &all->at[i];
        const char *name = kinds->at[f->kind].begin;
        f->begin = name ? begin_of(rec, all, i, name) : gap_of(all, i);
        f->end = next_begin(rec, kinds, f->last);
        if (i && all->at[i - 1].end > f->begin)
            all->at[i - 1].end = f->begin;
    }
}

/* ------------------------------------------------------------------------- what they are */

static void describe(const struct forwards *all, uint32_t kind, struct forward_kind *k)
{
    k->fewest_rows = UINT32_MAX;
    for (uint32_t i = 0; i < all->n; i++) {
        const struct forward *f = &all->at[i];
        bool known = false;
        if (f->kind != kind)
            continue;
        for (uint32_t j = 0; j < i; j++)
            known = known || (all->at[j].kind == kind && all->at[j].n_rows == f->n_rows);
        k->n_forwards++;
        k->n_counts += !known;
        k->most_rows = f->n_rows > k->most_rows ? f->n_rows : k->most_rows;
        k->fewest_rows = f->n_rows < k->fewest_rows ? f->n_rows : k->fewest_rows;
    }
}

static void name_kind(struct kinds *kinds, uint32_t i)
{
    struct forward_kind *k = &kinds->at[i];
    const char *stem = kinds->n == 1 ? "any" : k->most_rows > 1 ? "prefill" : "decode";
    uint32_t before = 0;
    for (uint32_t j = 0; j < i; j++)
        before += !strncmp(kinds->at[j].name, stem, strlen(stem));
    if (before)
        snprintf(k->name, sizeof k->name, "%s_%u", stem, before + 1);
    else
        snprintf(k->name, sizeof k->name, "%s", stem);
}

int kinds_find(struct err *err, const struct recording *rec, struct forwards *all,
               struct kinds *out)
{
    *out = (struct kinds){ 0 };
    _cleanup_(freep) bool *begun = calloc(all->n + 1, sizeof *begun);
    int r = begun ? sort_forwards(err, rec, all, out) : err_set(err, -ENOMEM, "no memory");
    if (!r)
        join_kinds(rec, all, out, begun);
    for (uint32_t k = 0; !r && k < out->n; k++) {
        describe(all, k, &out->at[k]);
        name_kind(out, k);
        out->at[k].begin = find_begin(rec, all, k, out->at[k].n_forwards, begun);
    }
    if (!r)
        set_ranges(rec, all, out);
    return r;
}
