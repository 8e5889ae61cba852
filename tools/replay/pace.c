/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/replay/pace.h"

#include "core/clock.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bool pace_parse(const char *text, double *speed)
{
    char *end;
    *speed = 0;
    if (!strcmp(text, "max"))
        return true;
    *speed = strtod(text, &end);
    end += end != text && *end == 'x';
    return end != text && !*end && isfinite(*speed) && *speed > 0;
}

uint64_t pace_wait_ns(struct pace *p, uint64_t time_ns)
{
    uint64_t now = clock_mono_ns();
    if (!(p->speed > 0))
        return 0;
    if (!p->begun) {
        p->begun = true;
        p->first_ns = time_ns;
        p->start_ns = now;
    }
    if (time_ns <= p->first_ns)
        return 0;
    double due = (double)(time_ns - p->first_ns) / p->speed, spent = (double)(now - p->start_ns);
    return due <= spent ? 0 : due - spent > 1e18 ? 1000000000000000000u : (uint64_t)(due - spent);
}
