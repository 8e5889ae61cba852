/* SPDX-License-Identifier: Apache-2.0 */
#include "cupti/other_clock.h"

#include "core/clock.h"

#define LEAST_NS 100000000u   /* of a line: an error of 0.1 us in a pair is 1e-6 of it */
#define MOST_NS  16000000000u /* the system's clock is slewed meanwhile */

void other_clock_look(struct other_clock *c, other_clock_read *read)
{
    if (c->read != read)
        *c = (struct other_clock){ .read = read };
    if (!read)
        return;
    struct clock_pair now = clock_pair(read);
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
    return c->last.other > c->first.other && c->last.mono_ns - c->first.mono_ns >= LEAST_NS;
}

uint64_t other_clock_mono(const struct other_clock *c, uint64_t ticks)
{
    double rate =
        (double)(c->last.mono_ns - c->first.mono_ns) / (double)(c->last.other - c->first.other);
    int64_t after = (int64_t)(ticks - c->last.other);
    return c->last.mono_ns + (uint64_t)(int64_t)((double)after * rate);
}
