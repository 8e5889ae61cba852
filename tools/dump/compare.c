/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-dump verify --against: which tensor of the reference a captured one is compared with. */
#include "tools/dump/diff.h"

#include "tools/common/select.h"

#include "core/cleanup.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The only request that the reference's keys name; NULL if there are none or several. */
static char *only_request(const struct safetensors *st)
{
    const char *first = NULL;
    size_t n = 0;
    for (size_t i = 0; i < st->n; i++) {
        const char *slash = strrchr(st->entries[i].key, '/');
        size_t len = slash ? (size_t)(slash - st->entries[i].key) : 0;
        if (first && (len != n || memcmp(first, st->entries[i].key, n)))
            return NULL;
        first = st->entries[i].key;
        n = len;
    }
    return n ? strndup(first, n) : NULL;
}

/* Tokens of a tensor's request from a prefix cache; a tensor whose rows are tokens has no rows for them. */
static uint64_t cached_rows(const struct requests *requests, const struct tensor *t,
                            const struct aliases *aliases)
{
    struct selection_name name = { (char *)(uintptr_t)t->request, t->n_request };
    if (!t->request || t->site->row != DMI_ROW_TOKEN)
        return 0;
    for (size_t i = 0; i < aliases->names.n; i++)
        if (aliases->names.all[i].n == name.n && !memcmp(aliases->names.all[i].s, name.s, name.n))
            name = aliases->ids.all[i];
    const struct request *r = requests_find(requests, name.s, name.n);
    return r ? r->n_cached : 0;
}

static void match(struct differ *d, const struct requests *requests)
{
    const struct selection chosen = { .requests = d->aliases.names };
    for (size_t i = 0; i < d->run.tensors.n; i++) {
        const struct tensor *t = &d->run.tensors.all[i];
        struct difference *x = &d->results[i];
        if (d->run.tensors.by_request &&
            !selection_wants_request(&chosen, t->request ? t->request : "", t->n_request))
            continue;
        x->reference = reference_find(d->reference, t->key);
        if (!x->reference)
            continue;
        const struct st_entry *e = x->reference->entry;
        uint64_t width = 1;
        for (uint32_t k = 1; k < e->n_dims; k++)
            width *= e->dims[k];
        x->sketch = width == SKETCH_COLUMNS && t->width > SKETCH_COLUMNS;
        x->n_cached = cached_rows(requests, t, &d->aliases);
        if (!t->width && e->n_dims) /* rows without elements: alike if there are as many */
            x->n_rows = t->n_rows == e->dims[0];
        x->bad_shape =
            !e->n_dims || t->mixed == TENSOR_MIXED_TYPE || (!x->sketch && width != t->width);
    }
}

static int build(struct err *err, struct differ *d)
{
    _cleanup_(freep) char *only = only_request(&d->reference->st);
    _cleanup_(requests_deinit) struct requests requests = { 0 };
    const char *implied = aliases_implied(&d->aliases);
    struct selection asked = { .requests = d->aliases.ids };
    const struct tensors_query query = { .implied = implied ? implied : only,
                                         .aliases = d->aliases.all,
                                         .n_aliases = d->aliases.n };
    if (implied && !reader_n_steps(d->run.reader))
        asked.requests = (struct selection_names){ 0 }; /* what the run is taken for */
    if (select_check(err, d->run.reader, &asked))
        return err->code;
    if (sites_build(d->run.reader, &d->run.sites) || requests_build(d->run.reader, &requests))
        return err_set_errno(err, ENOMEM, "cannot compare");
    int r = tensors_build(err, d->run.reader, &d->run.sites, &query, &d->run.tensors);
    if (!r && !(d->results = calloc(d->run.tensors.n + 1, sizeof *d->results)))
        r = err_set_errno(err, ENOMEM, "cannot compare");
    if (r)
        return r;
    match(d, &requests);
    return differ_rows(err, d);
}

int dump_compare(struct reader *reader, const struct dump_options *o, struct report *report)
{
    struct err err = { 0 };
    _cleanup_(reference_deinit) struct reference reference = { 0 };
    _cleanup_(differ_deinit) struct differ d = { .run = { .reader = reader },
                                                 .reference = &reference,
                                                 .tolerance = o->tolerance,
                                                 .row_tolerance = o->row_tolerance,
                                                 .undecoded = complain_undecoded };
    if (aliases_of(&o->select.requests, &d.aliases))
        return no_memory();
    if (reference_open(&err, o->against, &reference) || build(&err, &d)) {
        complain("%s", err.msg);
        return DUMP_USAGE;
    }
    return diff_reference_report(&d, o->against, report);
}
