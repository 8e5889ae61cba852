/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-dump verify --against: what only one side has, a name without layer and request a line. */
#include "tools/dump/compare.h"

#include "core/cleanup.h"
#include "core/grow.h"
#include "read/map.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Names in the order in which they came, and how many tensors have them. */
struct names {
    struct map index; /* name to entry */
    struct {
        const char *name; /* borrowed, not terminated */
        size_t n_name;
        uint64_t n;
    } * all;
    size_t n, room;
};

static int names_add(struct names *l, const char *name, size_t n_name)
{
    size_t *at = map_at(&l->index, name, n_name);
    if (!at)
        return -ENOMEM;
    if (*at == MAP_NONE) {
        if (grow((void **)&l->all, l->n, &l->room, sizeof *l->all, 32))
            return -ENOMEM;
        *at = l->n++;
        l->all[*at].name = name;
        l->all[*at].n_name = n_name;
        l->all[*at].n = 0;
    }
    l->all[*at].n++;
    return 0;
}

static void names_deinit(struct names *l)
{
    map_deinit(&l->index);
    free(l->all);
}

static void print_names(struct report *report, const char *title, const char *key,
                        const struct names *l)
{
    json_t *object = report->json ? json_object() : NULL;
    _cleanup_(text_deinit) struct text line = { 0 };
    for (size_t i = 0; i < l->n; i++) {
        if (object)
            json_object_setn_new(object, l->all[i].name, l->all[i].n_name, value_u64(l->all[i].n));
        text_printf(&line, "%s%.*s (%" PRIu64 ")", i ? ", " : title, (int)l->all[i].n_name,
                    l->all[i].name, l->all[i].n);
    }
    if (l->n)
        report_line(report, "%s", line.failed ? title : line.data);
    report_member(report, key, object);
}

/* SITE of a key REQUEST/SITE.LAYER */
static size_t site_part(const char *key, const char **site)
{
    const char *slash = strrchr(key, '/');
    *site = slash ? slash + 1 : key;
    size_t n = strlen(*site);
    size_t digits = n;
    while (digits && (*site)[digits - 1] >= '0' && (*site)[digits - 1] <= '9')
        digits--;
    return digits && digits < n && (*site)[digits - 1] == '.' ? digits - 1 : n;
}

/* Bytes of "REQUEST/" in a tensor's key, 0: no request. */
static size_t prefix_of(const struct tensor *t)
{
    return (size_t)(t->name - t->key);
}

/* Whether the reference holds anything of a captured request: its keys are sorted. */
static bool is_known(const struct safetensors *st, const struct tensor *t)
{
    size_t n = prefix_of(t), low = 0, high = st->n;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (strncmp(st->entries[mid].key, t->key, n) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return !n || (low < st->n && !strncmp(st->entries[low].key, t->key, n));
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

static int take_captured(const struct comparer *c, struct sides *s, size_t i)
{
    const struct tensor *t = &c->tensors.all[i];
    const char *site;
    if (!map_at(&s->keys, t->key, strlen(t->key)) || !map_at(&s->requests, t->key, prefix_of(t)))
        return -ENOMEM;
    *map_at(&s->keys, t->key, strlen(t->key)) = i;
    *map_at(&s->requests, t->key, prefix_of(t)) = i;
    if (c->results[i].ref)
        return 0;
    if (!is_known(&c->reference.st, t))
        return names_add(&s->unknown, t->key, prefix_of(t) - 1);
    size_t n = site_part(t->key, &site);
    return names_add(&s->extra, site, n);
}

static int take_reference(struct sides *s, const char *key)
{
    const char *site;
    if (map_get(&s->keys, key, strlen(key)) != MAP_NONE)
        return 0;
    size_t n = site_part(key, &site), n_prefix = (size_t)(site - key);
    bool served = !n_prefix || map_get(&s->requests, key, n_prefix) != MAP_NONE;
    return served ? names_add(&s->absent, site, n) : names_add(&s->unserved, key, n_prefix - 1);
}

int compare_names(const struct comparer *c, struct report *report)
{
    _cleanup_(sides_deinit) struct sides s = { 0 };
    int r = 0;
    for (size_t i = 0; !r && i < c->tensors.n; i++)
        r = take_captured(c, &s, i);
    for (size_t i = 0; !r && i < c->reference.st.n; i++)
        r = take_reference(&s, c->reference.st.entries[i].key);
    if (r)
        return r;
    print_names(report, "Requests of the reference that the run does not hold (tensors): ",
                "requests_not_in_run", &s.unserved);
    print_names(report, "Requests of the run that the reference does not hold (tensors): ",
                "requests_not_in_reference", &s.unknown);
    print_names(report, "In the reference, not captured (tensors): ", "not_captured", &s.absent);
    print_names(report, "Captured, not in the reference (tensors): ", "not_in_reference", &s.extra);
    return 0;
}
