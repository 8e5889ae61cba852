/* SPDX-License-Identifier: Apache-2.0 */
#include "cupti/other_clock.h"

#include "core/clock.h"

#define LEAST_NS   100000000u   /* of a line: an error of 0.1 us in a pair is 1e-6 of it */
#define MOST_NS    16000000000u /* the system's clock is slewed meanwhile */
#define FEW_NS     2000u        /* a reading that takes no longer is good enough */
#define N_READINGS 8

/* Of several readings the one that took least: between two clocks the machine may do something else for milliseconds. */
static struct other_clock_pair pair_of(other_clock_read *read)
{
    struct other_clock_pair best = { 0 };
    uint64_t least_ns = UINT64_MAX;
    for (int i = 0; i < N_READINGS && least_ns > FEW_NS; i++) {
        uint64_t before = clock_mono_ns(), ticks = read(), took_ns = clock_mono_ns() - before;
        if (took_ns < least_ns) {
            least_ns = took_ns;
            best = (struct other_clock_pair){ ticks, before + took_ns / 2 };
        }
    }
    return best;
}

void other_clock_look(struct other_clock *c, other_clock_read *read)
{
    if (c->read != read)
        *c = (struct other_clock){ .read = read };
    if (!read)
        return;
    struct other_clock_pair now = pair_of(read);
    if (!c->first.mono_ns)
        c->first = c->next = now;
    if (now.mono_ns - c->next.mono_ns > MOST_NS / 2) {
        c->first = now.mono_ns - c->first.mono_ns > MOST_NS ? c->next : c->first;
        c->next = now;
    }
    c->last = now;
}

bool other_clock_knows(const struct other_clock *c)
{
    return c->last.ticks > c->first.ticks && c->last.mono_ns - c->first.mono_ns >= LEAST_NS;
}

uint64_t other_clock_mono(const struct other_clock *c, uint64_t ticks)
{
    double rate =
        (double)(c->last.mono_ns - c->first.mono_ns) / (double)(c->last.ticks - c->first.ticks);
    int64_t after = (int64_t)(ticks - c->last.ticks);
    return c->last.mono_ns + (uint64_t)(int64_t)((double)after * rate);
}
