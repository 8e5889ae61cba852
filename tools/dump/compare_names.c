/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-dump verify --against: what only one side has, a name without layer and request a line. */
#include "tools/dump/diff.h"
#include "tools/common/names.h"

#include "core/cleanup.h"
#include "core/sorted.h"
#include "storage/map.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of "REQUEST/" in a tensor's key, 0: no request. */
static size_t prefix_of(const struct tensor *t)
{
    return (size_t)(t->name - t->key);
}

/* Whether the reference holds anything of a captured request: its keys are sorted. */
static bool is_known(const struct safetensors *st, const struct tensor *t)
{
    size_t n = prefix_of(t), i;
    SEARCH(i, st->n, strncmp(st->entries[i].key, t->key, n) < 0);
    return !n || (i < st->n && !strncmp(st->entries[i].key, t->key, n));
}

struct sides {
    struct names absent, extra, unserved, unknown;
    struct map keys, requests; /* of the run; requests with their slash */
};

static void sides_deinit(struct sides *s)
{
    names_deinit(&s->absent);
    names_deinit(&s->extra);
    names_deinit(&s->unserved);
    names_deinit(&s->unknown);
    map_deinit(&s->keys);
    map_deinit(&s->requests);
}

static int take_captured(const struct differ *d, struct sides *s, size_t i)
{
    const struct tensor *t = &d->run.tensors.all[i];
    const char *site;
    if (!map_at(&s->keys, t->key, strlen(t->key)) || !map_at(&s->requests, t->key, prefix_of(t)))
        return -ENOMEM;
    *map_at(&s->keys, t->key, strlen(t->key)) = i;
    *map_at(&s->requests, t->key, prefix_of(t)) = i;
    if (d->results[i].reference)
        return 0;
    if (!is_known(&d->reference->st, t))
        return names_add(&s->unknown, t->key, prefix_of(t) - 1);
    size_t n = names_site(t->key, &site);
    return names_add(&s->extra, site, n);
}

static int take_reference(struct sides *s, const char *key)
{
    const char *site;
    if (map_get(&s->keys, key, strlen(key)) != MAP_NONE)
        return 0;
    size_t n = names_site(key, &site), n_prefix = (size_t)(site - key);
    bool served = !n_prefix || map_get(&s->requests, key, n_prefix) != MAP_NONE;
    return served ? names_add(&s->absent, site, n) : names_add(&s->unserved, key, n_prefix - 1);
}

int compare_names(const struct differ *d, struct report *report)
{
    _cleanup_(sides_deinit) struct sides s = { 0 };
    int r = 0;
    for (size_t i = 0; !r && i < d->run.tensors.n; i++)
        r = take_captured(d, &s, i);
    for (size_t i = 0; !r && i < d->reference->st.n; i++)
        r = take_reference(&s, d->reference->st.entries[i].key);
    if (r)
        return r;
    names_print(report, "Requests of the reference that the run does not hold (tensors): ",
                "requests_not_in_run", &s.unserved);
    names_print(report, "Requests of the run that the reference does not hold (tensors): ",
                "requests_not_in_reference", &s.unknown);
    names_print(report, "In the reference, not captured (tensors): ", "not_captured", &s.absent);
    names_print(report, "Captured, not in the reference (tensors): ", "not_in_reference", &s.extra);
    return 0;
}
