/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/nvtx/consumers.h"

#include "core/atomic.h"
#include "preload/nvtx/names.h"
#include "preload/nvtx/ranges.h"

struct consumer {
    bool (*wants)(void);
    void (*push)(const void *domain, const char *text, size_t n);
    void (*pop)(const void *domain);
    void (*start)(const void *domain, uint64_t id, const char *text, size_t n);
    void (*end)(const void *domain, uint64_t id);
    uint32_t wanted; /* 1: it did when some module attached; atomic */
};

static struct consumer consumers[] = {
    { .wants = nvtx_names_wanted,
      .push = ranges_push,
      .pop = ranges_pop,
      .start = ranges_start,
      .end = ranges_end },
};

#define N_CONSUMERS (sizeof consumers / sizeof *consumers)

static bool is_called(size_t i)
{
    return atomic_load_relaxed(&consumers[i].wanted);
}

bool consumers_want(void)
{
    bool any = false;
    for (size_t i = 0; i < N_CONSUMERS; i++)
        if (consumers[i].wants()) {
            atomic_store_relaxed(&consumers[i].wanted, 1);
            any = true;
        }
    return any;
}

void consumers_push(const void *domain, const char *text, size_t n)
{
    for (size_t i = 0; i < N_CONSUMERS; i++)
        if (is_called(i))
            consumers[i].push(domain, text, n);
}

void consumers_pop(const void *domain)
{
    for (size_t i = 0; i < N_CONSUMERS; i++)
        if (is_called(i))
            consumers[i].pop(domain);
}

void consumers_start(const void *domain, uint64_t id, const char *text, size_t n)
{
    for (size_t i = 0; i < N_CONSUMERS; i++)
        if (is_called(i))
            consumers[i].start(domain, id, text, n);
}

void consumers_end(const void *domain, uint64_t id)
{
    for (size_t i = 0; i < N_CONSUMERS; i++)
        if (is_called(i))
            consumers[i].end(domain, id);
}
