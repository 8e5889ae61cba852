/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/function/variants.h"

#include "core/any.h"
#include "core/atomic.h"
#include "core/locked.h"
#include "preload/session/session.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define N_BUCKETS    4096u
#define MAX_VARIANTS 65536u /* a hostile program may number its ranges without end */

static struct variant *buckets[N_BUCKETS]; /* released and acquired by variants_of() */
static uint32_t n_variants;                /* under the lock */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static const struct variant *variant_of(const struct func *func)
{
    return func->base ? (const struct variant *)func : NULL;
}

static struct variant *find(struct variant *list, const struct func *base,
                            const struct variant_facts *facts)
{
    while (list && (list->func.base != base || memcmp(&list->facts, facts, sizeof *facts)))
        list = list->next;
    return list;
}

/* Room for what @facts adds to @base: a launch has so many sites at most. */
static uint32_t n_added(const struct func *base, const struct variant_facts *facts)
{
    uint32_t room = SPEC_MAX_MATCHES - base->match.n_sites;
    for (uint32_t i = room; i < facts->n; i++)
        session_problem(facts->sites[i].site, PROBLEM_UNSUPPORTED,
                        "kernel %s has more than %d sites in its range: not captured", base->name,
                        SPEC_MAX_MATCHES);
    return facts->n < room ? facts->n : room;
}

static struct variant *create(const struct func *base, const struct variant_facts *facts)
{
    struct variant *v = calloc(1, sizeof *v);
    if (!v)
        return NULL;
    *v = (struct variant){ .func = *base, .facts = *facts };
    v->func.base = base;
    v->func.match.n_ranged = 0;
    if (v->func.match.kind < 0)
        v->func.match.kind = facts->kind;
    uint32_t n = n_added(base, facts);
    for (uint32_t i = 0; i < n; i++)
        v->func.match.sites[v->func.match.n_sites++] = facts->sites[i].site;
    return v;
}

/* Under the lock. Return: NULL without room or memory. */
static struct variant *add(struct variant **bucket, const struct func *base,
                           const struct variant_facts *facts)
{
    struct variant *v = find(*bucket, base, facts);
    if (v || n_variants == MAX_VARIANTS || !(v = create(base, facts)))
        return v;
    n_variants++;
    v->next = *bucket;
    atomic_store_release(bucket, v); /* to variants_of() */
    return v;
}

const struct func *variants_of(const struct func *base, const struct variant_facts *facts)
{
    if (!facts->n && facts->kind < 0)
        return base;
    uint64_t hash = XXH3_64bits_withSeed(facts, sizeof *facts, (uintptr_t)base);
    struct variant **bucket = &buckets[hash % N_BUCKETS];
    struct variant *v = find(atomic_load_acquire(bucket), base, facts); /* of add() */
    if (!v) {
        UNDER(&lock, v = add(bucket, base, facts));
    }
    if (v)
        return &v->func;
    for (uint32_t i = 0; i < facts->n; i++)
        session_give_up(
            facts->sites[i].site,
            "kernel %s is in more different ranges than there is room for: switched off",
            base->name);
    return base;
}

static bool may_be(const struct func *base, uint32_t site)
{
    return ANY(i, base->match.n_ranged, base->match.ranged[i] == site);
}

const struct func *variants_like(const struct func *base, const struct func *func)
{
    const struct variant *v = variant_of(func);
    struct variant_facts facts = { .kind = v ? v->facts.kind : -1 };
    if (!v || v->func.base == base)
        return v ? func : base;
    for (uint32_t i = 0; i < v->facts.n; i++)
        if (may_be(base, v->facts.sites[i].site))
            facts.sites[facts.n++] = v->facts.sites[i];
    return base == &func_unmatched ? base : variants_of(base, &facts);
}

const struct variant_site *variants_site(const struct func *func, uint32_t site)
{
    const struct variant *v = variant_of(func);
    uint32_t n = v ? v->func.match.n_sites - v->func.base->match.n_sites : 0; /* that found room */
    return FIRST(i, n, v->facts.sites[i].site == site, &v->facts.sites[i], NULL);
}

int variants_kind(const struct func *func)
{
    const struct variant *v = variant_of(func);
    return v && v->func.base->match.kind < 0 ? v->facts.kind : -1;
}

void variants_reset(void)
{
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}
