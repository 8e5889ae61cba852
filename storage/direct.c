/* SPDX-License-Identifier: Apache-2.0 */
#include "storage/direct.h"

#include "core/clock.h"

#include <stdlib.h>
#include <time.h>

#define WEIGHT 0.25 /* of the latest write */

static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

bool direct_is_next(const struct direct *d)
{
    if (d->off)
        return false;
    for (int way = 0; way < 2; way++)
        if (d->cost[way] <= 0)
            return way;
    bool better = d->cost[true] < d->cost[false];
    return d->n_written % DIRECT_TRY == DIRECT_TRY - 1 ? !better : better;
}

void *direct_buffer(struct direct *d)
{
    if (!d->buffer)
        d->buffer = aligned_alloc(DIRECT_ALIGN, DIRECT_BUFFER);
    d->off |= !d->buffer;
    return d->buffer;
}

struct direct_time direct_begin(void)
{
    return (struct direct_time){ clock_mono_ns(), cpu_ns() };
}

void direct_note(struct direct *d, bool was_direct, uint64_t n_bytes,
                 const struct direct_time *begin)
{
    double ns = (double)(clock_mono_ns() - begin->mono_ns + cpu_ns() - begin->cpu_ns);
    double cost = (ns + 1) / (double)n_bytes, *mean = &d->cost[was_direct];
    *mean = *mean > 0 ? *mean + WEIGHT * (cost - *mean) : cost;
    d->n_written++;
}

void direct_deinit(struct direct *d)
{
    free(d->buffer);
    d->buffer = NULL;
}
