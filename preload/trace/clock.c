/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/trace/clock.h"

int64_t trace_clock_pair(struct trace_clock *c, uint64_t mono_ns, uint64_t real_ns)
{
    int64_t ahead = (int64_t)(real_ns - mono_ns), by = c->taken ? ahead - c->ahead_ns : 0;
    c->ahead_ns = ahead;
    c->taken = 1;
    return by > TRACE_CLOCK_JUMP_NS || by < -TRACE_CLOCK_JUMP_NS ? by : 0;
}

uint64_t trace_clock_real(const struct trace_clock *c, uint64_t mono_ns)
{
    return mono_ns ? mono_ns + (uint64_t)c->ahead_ns : 0;
}
