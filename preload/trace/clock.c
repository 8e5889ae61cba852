/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/trace/clock.h"

#include <string.h>

int64_t trace_clock_pair(struct trace_clock *c, uint64_t mono_ns, uint64_t real_ns)
{
    int64_t ahead = (int64_t)(real_ns - mono_ns), by = c->n ? ahead - c->parts[0].ahead_ns : 0;
    if (c->n && by <= TRACE_CLOCK_JUMP_NS && by >= -TRACE_CLOCK_JUMP_NS) {
        c->parts[0].ahead_ns = ahead;
        return 0;
    }
    c->n += c->n < TRACE_CLOCK_SET;
    memmove(&c->parts[1], &c->parts[0], (c->n - 1) * sizeof *c->parts);
    c->parts[0] = (struct trace_clock_part){ mono_ns, ahead };
    return by;
}

static uint64_t distance(int64_t a, int64_t b)
{
    return a > b ? (uint64_t)(a - b) : (uint64_t)(b - a);
}

int64_t trace_clock_ahead_of(const struct trace_clock *c, uint64_t mono_ns, uint64_t real_ns)
{
    int64_t read = (int64_t)(real_ns - mono_ns), before = trace_clock_ahead(c, mono_ns);
    uint32_t i = 0;
    while (i < c->n && c->parts[i].from_ns > mono_ns)
        i++;
    if (!i) /* no pair since then tells of a setting */
        return before;
    int64_t after = c->parts[i - 1].ahead_ns;
    return distance(read, after) < distance(read, before) ? after : before;
}

int64_t trace_clock_ahead(const struct trace_clock *c, uint64_t mono_ns)
{
    uint32_t i = 0;
    while (i + 1 < c->n && mono_ns < c->parts[i].from_ns)
        i++;
    return c->parts[i].ahead_ns;
}
