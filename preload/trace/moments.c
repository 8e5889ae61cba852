/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/trace/moments.h"

#include "core/clock.h"
#include "core/log.h"
#include "cupti/tracer.h"

#include <stdlib.h>

#define FAR_NS     100000  /* by which both clocks differ, beyond which records are moved */
#define TOLD_NS    1000000 /* and beyond which the log says it, also of a change */
#define ASSUMED_NS 1000000 /* the error where CUPTI does not say its clock, */
#define OTHER_NS   4000 /* and of a clock that another user gave it: its records have real times */

static struct {
    struct own_clock own; /* CUPTI's own, while it has no other one */
    bool other;           /* it has */
    int64_t ahead_ns;     /* of the system's clock to the monotonic one */
    int64_t slow_ns;      /* by which CUPTI's is slow, as records are moved, */
    int64_t told_ns;      /* and as the log said it last */
} moments;

/* @by: CUPTI's clock is slow by so much. */
static void tell(int64_t by)
{
    if (llabs(by - moments.told_ns) <= TOLD_NS)
        return;
    moments.told_ns = by;
    log_line("trace: CUPTI's clock is %.1f ms %s: what ran is placed by the difference",
             (double)llabs(by) / 1e6, by < 0 ? "ahead" : "behind");
}

void moments_look(const struct trace_clock *clock, bool other)
{
    struct clock_pair now;
    moments.other = other;
    moments.ahead_ns = clock->parts[0].ahead_ns;
    if (other)
        return;
    if (!tracer_clock(&now))
        now = clock_pair(clock_real_ns);
    own_clock_take(&moments.own, &now);
    int64_t ahead_ns = trace_clock_ahead(clock, now.mono_ns);
    int64_t by = (int64_t)(trace_clock_real(ahead_ns, now.mono_ns) - now.other);
    if (llabs(by - moments.slow_ns) > FAR_NS)
        moments.slow_ns = llabs(by) > FAR_NS ? by : 0;
    tell(by);
}

struct placed moments_place(struct records_event *e)
{
    if (moments.other) {
        uint64_t ahead = (uint64_t)moments.ahead_ns;
        return (struct placed){ e->begin_ns - ahead, e->end_ns - ahead, OTHER_NS };
    }
    struct placed at = own_clock_place(&moments.own, e->begin_ns, e->end_ns);
    if (moments.slow_ns && at.error_ns < ASSUMED_NS) {
        e->begin_ns += (uint64_t)moments.slow_ns;
        e->end_ns += (uint64_t)moments.slow_ns;
    }
    at.error_ns += tracer_says_clock() ? 0 : ASSUMED_NS;
    return at;
}

void moments_reset(void)
{
    moments = (__typeof__(moments)){ 0 };
}
