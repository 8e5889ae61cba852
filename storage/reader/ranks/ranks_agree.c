/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs of ranks that contradict each other: one run twice, one rank twice, sites of one name that mean different tensors.
 * What they say is not joined, and named with both. Source: docs/format.md 8.1.
 */
#include "core/any.h"
#include "core/cleanup.h"
#include "core/err.h"
#include "storage/map.h"
#include "storage/reader/ranks/ranks_agree.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct rank_text rank_text(const int32_t ranks[8])
{
    struct rank_text t;
    snprintf(t.text, sizeof t.text, "tp %d, pp %d, dp %d", ranks[2 * DMI_AXIS_TP],
             ranks[2 * DMI_AXIS_PP], ranks[2 * DMI_AXIS_DP]);
    return t;
}

bool reader_same_rank(const struct reader_rank *a, const struct reader_rank *b)
{
    for (int i = 0; i < 8; i += 2)
        if (a->ranks[i] != b->ranks[i])
            return false;
    return true;
}

/* ------------------------------------------------------------------------- one run or rank twice */

static const char *name_of(const struct reader_rank *about)
{
    const char *slash = strrchr(about->path, '/');
    return slash ? slash + 1 : about->path;
}

/* Takes run @i out of those that are joined; its sentence is owned from now on. NULL: no memory. */
static int leave_out(struct reader_ranks *k, size_t i, char *why)
{
    struct reader_left_out *all = realloc(k->left_out, (k->n_left_out + 1) * sizeof *all);
    if (!why || !all) {
        free(why);
        return -ENOMEM;
    }
    k->left_out = all;
    all[k->n_left_out++] =
        (struct reader_left_out){ k->runs[i], k->site_of[i], k->step_of[i], why };
    k->n--;
    for (; i < k->n; i++) {
        k->runs[i] = k->runs[i + 1];
        k->about[i] = k->about[i + 1];
        k->site_of[i] = k->site_of[i + 1];
        k->step_of[i] = k->step_of[i + 1];
    }
    return 0;
}

/* A copy of a run's folder: the one that holds more is read. Return: 0 or -ENOMEM. */
static int leave_copies(struct reader_ranks *k)
{
    for (size_t i = 1; i < k->n; i++)
        for (size_t j = 0; j < i; j++) {
            const struct reader_run *a = &k->runs[j]->run, *b = &k->runs[i]->run;
            if (!*a->uuid || strcmp(a->uuid, b->uuid))
                continue;
            bool first = a->n_file_bytes >= b->n_file_bytes;
            size_t kept = first ? j : i, copy = first ? i : j;
            char *why = NULL;
            if (asprintf(&why, "%s is the run %s again, by its UUID: it is left out",
                         name_of(&k->about[copy]), name_of(&k->about[kept])) < 0)
                why = NULL;
            TRY(leave_out(k, copy, why));
            i--; /* another one stands there now */
            break;
        }
    return 0;
}

static bool same_sizes(const struct reader_rank *a, const struct reader_rank *b)
{
    return !ANY(axis, DMI_AXIS_COUNT,
                reader_n_ranks(a->ranks, axis) != reader_n_ranks(b->ranks, axis));
}

/* The run that says the same rank as @i; @n: none. */
static size_t twin_of(const struct reader_ranks *k, size_t i)
{
    size_t j = 0;
    while (j < k->n && (j == i || !k->about[i].known || !k->about[j].known ||
                        !reader_same_rank(&k->about[i], &k->about[j])))
        j++;
    return j;
}

/* Whether those that are a rank alone are ranks of one engine: else a command ran several, which are no ranks of one. */
static bool others_are_ranks(const struct reader_ranks *k)
{
    size_t n_alone = 0, first = SIZE_MAX;
    for (size_t i = 0; i < k->n; i++) {
        if (!k->about[i].known)
            continue;
        first = first == SIZE_MAX ? i : first;
        if (!same_sizes(&k->about[first], &k->about[i]))
            return false;
        n_alone += twin_of(k, i) == k->n;
    }
    return n_alone != 0;
}

/* Nothing says which of two runs of one rank is meant. Return: 0 or -ENOMEM. */
static int leave_doubles(struct reader_ranks *k)
{
    _cleanup_(freep) size_t *twins = calloc(k->n + 1, sizeof *twins);
    size_t n = k->n;
    if (!twins)
        return -ENOMEM;
    if (!others_are_ranks(k))
        return 0;
    _cleanup_(freep) const char **names = calloc(n + 1, sizeof *names);
    if (!names)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        twins[i] = twin_of(k, i);
        names[i] = name_of(&k->about[i]);
    }
    for (size_t i = n; i-- > 0;) {
        char *why = NULL;
        if (twins[i] == n)
            continue;
        if (asprintf(&why, "%s and %s both say that they are rank %s: %s is left out", names[i],
                     names[twins[i]], rank_text(k->about[i].ranks).text, names[i]) < 0)
            why = NULL;
        TRY(leave_out(k, i, why));
    }
    return 0;
}

int reader_leave_twins(struct reader_ranks *k)
{
    int res = leave_copies(k);
    return res ? res : leave_doubles(k);
}

void reader_note_ranks(struct reader *r)
{
    const struct reader_ranks *k = r->ranks;
    size_t first = 0;
    for (size_t i = 0; i < k->n_left_out; i++)
        reader_note(&r->notes, true, "ranks", -1, 0, "%s", k->left_out[i].why);
    while (first < k->n && !k->about[first].known)
        first++;
    for (size_t i = first + 1; i < k->n; i++)
        for (uint32_t a = 0; k->about[i].known && a < DMI_AXIS_COUNT; a++) {
            int32_t size = reader_n_ranks(k->about[i].ranks, a);
            int32_t other = reader_n_ranks(k->about[first].ranks, a);
            if (size == other)
                continue;
            reader_note(&r->notes, true, "ranks", -1, 0,
                        "%s (rank %s) says that there are %d %s ranks, and %s (rank %s) says %d",
                        name_of(&k->about[i]), rank_text(k->about[i].ranks).text, size,
                        dmi_axis_name(a), name_of(&k->about[first]),
                        rank_text(k->about[first].ranks).text, other);
        }
}

/* ------------------------------------------------------------------------- records */

static bool same_kept(const struct reader_record *a, const struct reader_record *b)
{
    if (!a->kept != !b->kept || a->n_rows != b->n_rows)
        return false;
    return !a->kept || !memcmp(a->kept, b->kept, a->n_rows * sizeof *a->kept);
}

bool reader_same_shape(const struct reader_record *a, const struct reader_record *b, uint32_t free)
{
    bool same = a->at.dtype == b->at.dtype && a->at.n_dims == b->at.n_dims &&
                a->at.n_row_dims == b->at.n_row_dims && same_kept(a, b);
    for (uint32_t d = 0; same && d < a->at.n_dims; d++)
        same = d == free || a->at.dims[d] == b->at.dims[d];
    return same;
}

struct shape_text shape_text(const struct reader_record *rec)
{
    struct shape_text t;
    size_t n = (size_t)snprintf(t.text, sizeof t.text, "%s", dmi_dtype_info(rec->at.dtype)->name);
    for (uint32_t d = 0; d < rec->at.n_dims && n < sizeof t.text; d++)
        n += (size_t)snprintf(t.text + n, sizeof t.text - n, "%s%u", d ? ", " : " [",
                              rec->at.dims[d]);
    if (n < sizeof t.text)
        snprintf(t.text + n, sizeof t.text - n, "]");
    return t;
}

/* ------------------------------------------------------------------------- sites */

/* What a run says of a site, among those with which its records may be joined. */
struct statement {
    struct statement_key {
        uint64_t site; /* key */
        int32_t dp, pp;
    } key; /* without padding */
    uint32_t run, site;
};
static_assert(sizeof(struct statement_key) == 16, "hashed as bytes");

struct statements {
    struct map first; /* by key */
    struct statement *all;
    size_t n;
};

static bool is_over(const struct dmi_site *site, uint32_t axis)
{
    return site->shard != DMI_SHARD_NONE && site->shard_axis == axis;
}

/* Over stages or data ranks: then these are joined, too. */
static bool is_over_others(const struct dmi_site *site)
{
    return is_over(site, DMI_AXIS_DP) || is_over(site, DMI_AXIS_PP);
}

struct meaning {
    char text[96];
};

static struct meaning shard_meaning(const struct dmi_site *site)
{
    struct meaning m = { "that each rank has all of it" };
    if (site->shard == DMI_SHARD_DIM)
        snprintf(m.text, sizeof m.text, "that dimension %u is divided over %s", site->shard_dim,
                 dmi_axis_name(site->shard_axis));
    else if (site->shard == DMI_SHARD_SUM)
        snprintf(m.text, sizeof m.text, "that it is the sum over %s",
                 dmi_axis_name(site->shard_axis));
    return m;
}

/* Whether they mean the same values; else *@x and *@y say what they mean. */
static bool mean_the_same(const struct dmi_site *a, const struct dmi_site *b, struct meaning *x,
                          struct meaning *y)
{
    double scale_a = a->scale != 0 ? a->scale : 1, scale_b = b->scale != 0 ? b->scale : 1;
    bool same_shard = a->shard == b->shard &&
                      (a->shard == DMI_SHARD_NONE || a->shard_axis == b->shard_axis) &&
                      (a->shard != DMI_SHARD_DIM || a->shard_dim == b->shard_dim);
    if (!same_shard) {
        *x = shard_meaning(a);
        *y = shard_meaning(b);
    } else if (a->row != b->row) {
        snprintf(x->text, sizeof x->text, "\"row: %s\"", dmi_row_name(a->row));
        snprintf(y->text, sizeof y->text, "\"row: %s\"", dmi_row_name(b->row));
    } else if (scale_a != scale_b) {
        snprintf(x->text, sizeof x->text, "scale %.9g", scale_a);
        snprintf(y->text, sizeof y->text, "scale %.9g", scale_b);
    } else {
        return true;
    }
    return false;
}

static int add_contradiction(struct reader *r, const struct statement *a, const struct statement *b,
                             const struct meaning *x, const struct meaning *y)
{
    struct reader_ranks *k = r->ranks;
    if (reader_contradiction_of(k, a->key.site, a->key.dp, a->key.pp))
        return 0;
    if (GROW(k->contradictions, k->n_contradictions, k->contradictions_room))
        return -ENOMEM;
    struct reader_contradiction *c = &k->contradictions[k->n_contradictions++];
    *c = (struct reader_contradiction){
        .key = a->key.site, .dp = a->key.dp, .pp = a->key.pp, .site = a->site
    };
    snprintf(c->text, sizeof c->text, "rank %s says %s, and rank %s %s",
             rank_text(k->about[b->run].ranks).text, y->text,
             rank_text(k->about[a->run].ranks).text, x->text);
    return 0;
}

/* One site of a run against the first run that has it. @dp, @pp: of whose runs; -1: all. */
static int state(struct reader *r, struct statements *all, uint32_t run, uint32_t site, int32_t dp,
                 int32_t pp)
{
    const struct dmi_site *sites = r->said.sites;
    struct statement *s = &all->all[all->n];
    *s = (struct statement){ { r->ranks->site_key[site], dp, pp }, run, site };
    size_t *first = map_at(&all->first, &s->key, sizeof s->key);
    if (!first)
        return -ENOMEM;
    if (*first == MAP_NONE) {
        *first = all->n++;
        return 0;
    }
    struct meaning x, y;
    const struct statement *other = &all->all[*first];
    bool joined = dp >= 0 || is_over_others(&sites[site]) || is_over_others(&sites[other->site]);
    return !joined || other->site == site ||
                   mean_the_same(&sites[other->site], &sites[site], &x, &y)
               ? 0
               : add_contradiction(r, other, s, &x, &y);
}

int reader_find_contradictions(struct reader *r)
{
    struct reader_ranks *k = r->ranks;
    struct statements all = { 0 };
    int res = 0;
    k->n_contradictions = 0;
    all.all = calloc(2 * k->n * (r->said.n_sites + 1) + 1, sizeof *all.all);
    if (!all.all)
        return -ENOMEM;
    for (uint32_t i = 0; !res && i < k->n; i++) {
        const struct reader *run = k->runs[i];
        const int32_t *ranks = k->about[i].ranks;
        for (size_t s = 0; run->selection.n_records && !res && s < run->said.n_sites; s++) {
            uint32_t site = k->site_of[i][s];
            if (!run->found[s].records)
                continue;
            res = state(r, &all, i, site, ranks[2 * DMI_AXIS_DP], ranks[2 * DMI_AXIS_PP]);
            if (!res)
                res = state(r, &all, i, site, -1, -1);
        }
    }
    map_deinit(&all.first);
    free(all.all);
    return res;
}

struct reader_contradiction *reader_contradiction_of(const struct reader_ranks *k, uint64_t site,
                                                     int32_t dp, int32_t pp)
{
    for (size_t i = 0; i < k->n_contradictions; i++) {
        struct reader_contradiction *c = &k->contradictions[i];
        bool all = c->dp < 0 || dp < 0 || pp < 0;
        if (c->key == site && (all || (c->dp == dp && c->pp == pp)))
            return c;
    }
    return NULL;
}
