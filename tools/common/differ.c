/* SPDX-License-Identifier: Apache-2.0 */
/* Two runs: which tensor of one is compared with which of the other. */
#include "tools/common/differ.h"

#include "tools/common/select.h"

#include "storage/map.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* @ids: as the side calls the requests; tensors are named as the other run calls them. @lacks: gets what the side has not of what was selected. */
static int build_side(struct err *err, struct side *s, const struct selection *asked,
                      const struct selection_names *ids, const struct aliases *aliases,
                      struct err *lacks)
{
    struct selection select = *asked; /* its names are borrowed */
    select.rejected = select.superseded = false;
    select.requests = *ids;
    int r = select_records(err, s->reader, &select, false);
    if (aliases_implied(aliases) && !reader_n_steps(s->reader))
        select.requests = (struct selection_names){ 0 }; /* what the run is taken for */
    if (!r)
        r = select_check(lacks, s->reader, &select);
    if (r && r != -ENOENT)
        return err_set(err, r, "%s", lacks->msg);
    select.requests = aliases->names;
    struct tensors_query query = { .implied = aliases_implied(aliases), .select = &select };
    if (ids != &aliases->names) {
        query.aliases = aliases->all;
        query.n_aliases = aliases->n;
    }
    if (sites_build(s->reader, &s->sites))
        return err_set_errno(err, ENOMEM, "cannot compare");
    return tensors_build(err, s->reader, &s->sites, &query, &s->tensors);
}

/* What only one run has is a difference; what neither has was not meant, nor a name that is said for one of them. */
static int check_sides(struct err *err, const struct err *lacks, const struct aliases *aliases)
{
    const struct err *first = lacks[0].code ? &lacks[0] : &lacks[1];
    bool both = lacks[0].code && lacks[1].code;
    return both || (first->code && aliases->n) ? err_set(err, -ENOENT, "%s", first->msg) : 0;
}

/* Is each position there once, the lower first? Else rows are compared in their order. */
static bool is_ordered(const struct tensor *t)
{
    int64_t end = 0;
    for (size_t i = 0; i < t->n_stretches; i++) {
        if (t->stretches[i].position < end)
            return false;
        end = t->stretches[i].position + t->stretches[i].n_rows;
    }
    return true;
}

static void pair(const struct tensor *t, const struct tensor *other, struct difference *out)
{
    out->other = other;
    out->bad_shape = t->mixed == TENSOR_MIXED_TYPE || other->mixed == TENSOR_MIXED_TYPE ||
                     t->width != other->width;
    out->by_position = is_ordered(t) && is_ordered(other);
}

static int match(struct differ *d)
{
    struct map keys = { 0 };
    int r = 0;
    for (size_t i = 0; !r && i < d->other.tensors.n; i++) {
        const char *key = d->other.tensors.all[i].key;
        size_t *at = map_at(&keys, key, strlen(key));
        r = at ? 0 : -ENOMEM;
        if (at)
            *at = i;
    }
    for (size_t i = 0; !r && i < d->run.tensors.n; i++) {
        const struct tensor *t = &d->run.tensors.all[i];
        size_t at = map_get(&keys, t->key, strlen(t->key));
        if (at == MAP_NONE)
            continue;
        d->met[at] = true;
        pair(t, &d->other.tensors.all[at], &d->results[i]);
    }
    map_deinit(&keys);
    return r;
}

int differ_pair(struct err *err, struct differ *d)
{
    struct err lacks[2] = { 0 };
    int r = aliases_of(&d->select->requests, &d->aliases);
    if (r)
        return err_set_errno(err, -r, "cannot compare");
    d->records.reader = d->other.reader;
    r = build_side(err, &d->run, d->select, &d->aliases.ids, &d->aliases, &lacks[0]);
    if (!r)
        r = build_side(err, &d->other, d->select, &d->aliases.names, &d->aliases, &lacks[1]);
    if (!r)
        r = check_sides(err, lacks, &d->aliases);
    if (r)
        return r;
    d->results = calloc(d->run.tensors.n + 1, sizeof *d->results);
    d->met = calloc(d->other.tensors.n + 1, sizeof *d->met);
    if (!d->results || !d->met || match(d))
        return err_set_errno(err, ENOMEM, "cannot compare");
    return 0;
}

static void side_deinit(struct side *s)
{
    tensors_deinit(&s->tensors);
    sites_deinit(&s->sites);
}

void differ_deinit(struct differ *d)
{
    records_deinit(&d->records);
    side_deinit(&d->run);
    side_deinit(&d->other);
    free(d->results);
    free(d->met);
    row_pair_deinit(&d->pair);
    free(d->signs);
    aliases_deinit(&d->aliases);
}
