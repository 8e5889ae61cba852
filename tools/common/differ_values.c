/* SPDX-License-Identifier: Apache-2.0 */
/* How far a run and another one, or a reference, are apart, by site and by tensor, as JSON. */
#include "tools/common/differ.h"

#include "core/cleanup.h"
#include "read/value.h"

#include <errno.h>
#include <stdlib.h>

json_t *differ_divergence(const struct divergence *d)
{
    if (!d->tensor)
        return json_null();
    return json_pack("{s:o, s:o, s:o, s:o, s:o}", "tensor", value_text(d->tensor->key), "position",
                     d->position < 0 ? json_null() : json_integer(d->position), "element",
                     value_u64(d->element), "run", value_double(d->ours), "other",
                     value_double(d->theirs));
}

/* ------------------------------------------------------------------------- by site */

struct differ_site {
    uint64_t n_tensors, n_layers, n_failed, n_rows, n_same, n_lacking;
    uint64_t n_reference_rows, n_cached; /* of the reference */
    struct sums sums;
    double error, worst_row, least_cosine;
    const struct tensor *worst;
    const struct divergence *first;
    int32_t last_layer;
    bool sketch;
};

static void sum_tensor(struct differ_site *s, const struct tensor *t, const struct difference *x,
                       const struct differ *d)
{
    if (!s->n_tensors++)
        s->least_cosine = 1;
    s->n_failed += !difference_passes(d, x);
    if (!s->n_layers || t->layer > s->last_layer) {
        s->n_layers++;
        s->last_layer = t->layer;
    }
    if (x->bad_shape)
        return;
    s->n_rows += x->n_rows;
    s->n_same += x->n_same;
    s->n_lacking += x->n_lacking;
    s->n_reference_rows += x->reference ? x->reference->entry->dims[0] : 0;
    s->n_cached += x->n_cached;
    s->sketch = x->sketch;
    sums_add(&s->sums, &x->sums);
    if (!x->n_rows)
        return;
    double error = difference_error(x), cosine = sums_cosine(&x->sums);
    if (!s->worst || error > s->error) {
        s->error = error;
        s->worst = t;
    }
    s->worst_row = x->worst_row > s->worst_row ? x->worst_row : s->worst_row;
    s->least_cosine = cosine < s->least_cosine ? cosine : s->least_cosine;
    if (x->first.tensor && (!s->first || x->first.record < s->first->record))
        s->first = &x->first;
}

static double mean_of(const struct sums *s)
{
    return s->n ? s->abs / (double)s->n : 0;
}

static json_t *site_row(const char *name, const struct differ_site *s)
{
    static const struct divergence none;
    return VALUE_OBJECT(
        { "site", value_text(name) }, { "layers", value_u64(s->n_layers) },
        { "tensors", value_u64(s->n_tensors) }, { "differing", value_u64(s->n_failed) },
        { "rows", value_u64(s->n_rows) }, { "same_rows", value_u64(s->n_same) },
        { "lacking_rows", value_u64(s->n_lacking) }, { "greatest", value_double(s->sums.greatest) },
        { "mean", value_double(mean_of(&s->sums)) }, { "error", value_double(s->error) },
        { "least_cosine", value_double(s->least_cosine) },
        { "first", differ_divergence(s->first ? s->first : &none) });
}

static json_t *reference_site_row(const char *name, const struct differ_site *s)
{
    return VALUE_OBJECT(
        { "site", value_text(name) }, { "layers", value_u64(s->n_layers) },
        { "tensors", value_u64(s->n_tensors) }, { "rows", value_u64(s->n_rows) },
        { "reference_rows", value_u64(s->n_reference_rows) },
        { "cached_rows", value_u64(s->n_cached) }, { "worst_error", value_double(s->error) },
        { "worst_row", value_double(s->worst_row) },
        { "least_cosine", value_double(s->least_cosine) },
        { "worst_tensor", value_text(s->worst ? s->worst->key : NULL) },
        { "sketch", json_boolean(s->sketch) }, { "failed", value_u64(s->n_failed) });
}

json_t *differ_sites(const struct differ *d)
{
    json_t *list = json_array();
    _cleanup_(freep) struct differ_site *sums = calloc(d->run.sites.n + 1, sizeof *sums);
    if (!sums || !list) {
        json_decref(list);
        return NULL;
    }
    for (size_t i = 0; i < d->run.tensors.n; i++) /* of a site those of one request come by layer */
        if (difference_is_paired(&d->results[i]))
            sum_tensor(&sums[d->run.tensors.all[i].order], &d->run.tensors.all[i], &d->results[i],
                       d);
    for (size_t i = 0; i < d->run.sites.n; i++)
        if (sums[i].n_tensors)
            json_array_append_new(list, (d->reference ? reference_site_row : site_row)(
                                            reader_site(d->run.reader, i)->name, &sums[i]));
    return list;
}

/* ------------------------------------------------------------------------- by tensor */

static json_t *reference_tensor_row(const struct tensor *t, const struct difference *x, bool passes)
{
    const struct st_entry *e = x->reference->entry;
    bool any = x->n_rows && !x->bad_shape;
    return VALUE_OBJECT({ "key", value_text(t->key) },
                        { "error", x->bad_shape ? json_null() : value_double(difference_error(x)) },
                        { "worst_row", value_double(x->worst_row) },
                        { "worst_position", json_integer(x->worst_position) },
                        { "cosine", any ? value_double(sums_cosine(&x->sums)) : json_null() },
                        { "rows", value_u64(x->n_rows) },
                        { "reference_rows", value_u64(e->n_dims ? e->dims[0] : 0) },
                        { "cached_rows", value_u64(x->n_cached) },
                        { "rows_beyond_reference", value_u64(x->n_lacking) },
                        { "sketch", json_boolean(x->sketch) }, { "passes", json_boolean(passes) });
}

json_t *differ_tensor(const struct differ *d, size_t i)
{
    const struct tensor *t = &d->run.tensors.all[i];
    const struct difference *x = &d->results[i];
    bool any = x->n_rows, passes = difference_passes(d, x);
    if (x->reference)
        return reference_tensor_row(t, x, passes);
    return VALUE_OBJECT(
        { "key", value_text(t->key) }, { "rows", value_u64(x->n_rows) },
        { "same_rows", value_u64(x->n_same) }, { "lacking_rows", value_u64(x->n_lacking) },
        { "greatest", any ? value_double(x->sums.greatest) : json_null() },
        { "mean", any ? value_double(mean_of(&x->sums)) : json_null() },
        { "error", any ? value_double(difference_error(x)) : json_null() },
        { "cosine", any ? value_double(sums_cosine(&x->sums)) : json_null() },
        { "first", differ_divergence(&x->first) }, { "other_shape", json_boolean(x->bad_shape) },
        { "passes", json_boolean(passes) });
}

/* ------------------------------------------------------------------------- what only one has */

/* @has: whether the other side has tensor number i. Return: 0 or -ENOMEM. */
static int only(const struct side *s, bool (*has)(const struct differ *d, size_t i),
                const struct differ *d, struct names *sites)
{
    int r = 0;
    for (size_t i = 0; !r && i < s->tensors.n; i++) {
        const char *site;
        if (has(d, i))
            continue;
        size_t n_site = names_site(s->tensors.all[i].key, &site);
        r = names_add(sites, site, n_site);
    }
    return r;
}

static bool other_has(const struct differ *d, size_t i)
{
    return d->results[i].other;
}

static bool run_has(const struct differ *d, size_t i)
{
    return d->met[i];
}

int differ_only(const struct differ *d, struct names *run, struct names *other)
{
    int r = only(&d->run, other_has, d, run);
    return r ? r : only(&d->other, run_has, d, other);
}

uint64_t differ_rows_only_in_other(const struct differ *d)
{
    uint64_t n = 0;
    for (size_t i = 0; i < d->run.tensors.n; i++) {
        const struct difference *x = &d->results[i];
        if (x->other && !x->bad_shape)
            n += x->other->n_rows - x->n_rows - x->n_undecoded;
    }
    return n;
}

struct differ_totals differ_total(const struct differ *d)
{
    struct differ_totals t = { .n_only = differ_rows_only_in_other(d) };
    for (size_t i = 0; i < d->run.tensors.n; i++) {
        const struct difference *x = &d->results[i];
        t.n_compared += difference_is_paired(x);
        t.n_differing += difference_is_paired(x) && !difference_passes(d, x);
        t.n_only += !d->reference && !x->other;
        t.n_rows += x->n_rows;
        t.n_same += x->n_same;
    }
    for (size_t i = 0; i < d->other.tensors.n; i++)
        t.n_only += !d->met[i];
    t.equal = t.n_compared && !t.n_differing && !t.n_only && !d->n_unreadable;
    return t;
}
