/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-dump verify --against: which tensor of the reference a captured one is compared with. */
#include "tools/dump/compare.h"

#include "tools/common/select.h"
#include "tools/common/aliases.h"

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
static uint64_t cached_rows(const struct comparer *c, const struct tensor *t,
                            const struct aliases *aliases)
{
    struct selection_name name = { (char *)(uintptr_t)t->request, t->n_request };
    if (!t->request || t->site->row != DMI_ROW_TOKEN)
        return 0;
    for (size_t i = 0; i < aliases->names.n; i++)
        if (aliases->names.all[i].n == name.n && !memcmp(aliases->names.all[i].s, name.s, name.n))
            name = aliases->ids.all[i];
    const struct request *r = requests_find(&c->requests, name.s, name.n);
    return r ? r->n_cached : 0;
}

static void match(struct comparer *c, const struct aliases *aliases)
{
    const struct selection chosen = { .requests = aliases->names };
    for (size_t i = 0; i < c->tensors.n; i++) {
        const struct tensor *t = &c->tensors.all[i];
        struct compared *r = &c->results[i];
        if (c->tensors.by_request &&
            !selection_wants_request(&chosen, t->request ? t->request : "", t->n_request))
            continue;
        r->ref = reference_find(&c->reference, t->key);
        if (!r->ref)
            continue;
        uint64_t width = 1;
        for (uint32_t d = 1; d < r->ref->entry->n_dims; d++)
            width *= r->ref->entry->dims[d];
        r->sketch = width == SKETCH_COLUMNS && t->width > SKETCH_COLUMNS;
        r->n_cached = cached_rows(c, t, aliases);
        if (!t->width &&
            r->ref->entry->n_dims) /* rows without elements: alike if there are as many */
            r->n_compared = t->n_rows == r->ref->entry->dims[0];
        r->bad_shape = !r->ref->entry->n_dims || t->mixed == TENSOR_MIXED_TYPE ||
                       (!r->sketch && width != t->width);
    }
}

static int build(struct err *err, struct comparer *c, const struct aliases *aliases)
{
    _cleanup_(freep) char *only = only_request(&c->reference.st);
    const char *implied = aliases_implied(aliases);
    struct selection asked = { .requests = aliases->ids };
    const struct tensors_query query = { .implied = implied ? implied : only,
                                         .aliases = aliases->all,
                                         .n_aliases = aliases->n };
    if (implied && !reader_n_steps(c->reader))
        asked.requests = (struct selection_names){ 0 }; /* what the run is taken for */
    if (select_check(err, c->reader, &asked))
        return err->code;
    if (sites_build(c->reader, &c->sites) || requests_build(c->reader, &c->requests))
        return err_set_errno(err, ENOMEM, "cannot compare");
    int r = tensors_build(err, c->reader, &c->sites, &query, &c->tensors);
    if (!r && !(c->results = calloc(c->tensors.n + 1, sizeof *c->results)))
        r = err_set_errno(err, ENOMEM, "cannot compare");
    if (r)
        return r;
    match(c, aliases);
    return compare_rows(err, c);
}

static void comparer_deinit(struct comparer *c)
{
    reference_deinit(&c->reference);
    requests_deinit(&c->requests);
    tensors_deinit(&c->tensors);
    sites_deinit(&c->sites);
    free(c->results);
    row_pair_deinit(&c->row);
    free(c->signs);
}

int dump_compare(struct reader *reader, const struct dump_options *o, struct report *report)
{
    struct err err = { 0 };
    _cleanup_(comparer_deinit) struct comparer c = { .reader = reader, .options = o };
    _cleanup_(aliases_deinit) struct aliases aliases = { 0 };
    if (aliases_of(&o->select.requests, &aliases))
        return no_memory();
    if (reference_open(&err, o->against, &c.reference) || build(&err, &c, &aliases)) {
        complain("%s", err.msg);
        return DUMP_USAGE;
    }
    return compare_report(&c, report);
}
