/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/nvtx/consumers.h"

#include "core/atomic.h"
#include "preload/nvtx/names.h"
#include "preload/nvtx/ranges.h"

static struct consumer of_spec = { .wants = nvtx_names_wanted,
                                   .push = ranges_push,
                                   .pop = ranges_pop,
                                   .start = ranges_start,
                                   .end = ranges_end };
/* Atomic: a module may attach while others come. */
static struct consumer *consumers[3] = { &of_spec };

#define N_CONSUMERS (sizeof consumers / sizeof *consumers)

static struct consumer *at(size_t i)
{
    return atomic_load_acquire(&consumers[i]); /* of consumers_use() */
}

/* Return: NULL: it is not called. */
static const struct consumer *called(size_t i)
{
    const struct consumer *c = at(i);
    return c && atomic_load_relaxed(&c->wanted) ? c : NULL;
}

void consumers_use(struct consumer *consumer)
{
    size_t i = 1;
    while (i < N_CONSUMERS && at(i) && at(i) != consumer)
        i++;
    if (i < N_CONSUMERS)
        atomic_store_release(&consumers[i], consumer); /* to at() */
}

bool consumers_want(void)
{
    bool any = false;
    for (size_t i = 0; i < N_CONSUMERS; i++) {
        struct consumer *c = at(i);
        if (!c || !c->wants())
            continue;
        atomic_store_relaxed(&c->wanted, 1);
        any = true;
    }
    return any;
}

/* Calls @member of each consumer that is called and has it. */
#define CALL_EACH(member, ...)                                                                     \
    do {                                                                                           \
        for (size_t _i = 0; _i < N_CONSUMERS; _i++) {                                              \
            const struct consumer *_c = called(_i);                                                \
            if (_c && _c->member)                                                                  \
                _c->member(__VA_ARGS__);                                                           \
        }                                                                                          \
    } while (0)

void consumers_push(const void *domain, const char *text, size_t n)
{
    CALL_EACH(push, domain, text, n);
}

void consumers_pop(const void *domain)
{
    CALL_EACH(pop, domain);
}

void consumers_start(const void *domain, uint64_t id, const char *text, size_t n)
{
    CALL_EACH(start, domain, id, text, n);
}

void consumers_end(const void *domain, uint64_t id)
{
    CALL_EACH(end, domain, id);
}
