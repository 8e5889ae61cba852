/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/trace/trace.h"

#include "core/log.h"
#include "preload/base/driver.h"
#include "preload/trace/activity.h"
#include "preload/trace/collector.h"
#include "preload/trace/events.h"
#include "preload/trace/graphs.h"
#include "preload/trace/named.h"
#include "preload/trace/nvtx_ranges.h"
#include "preload/trace/range_ring.h"
#include "preload/trace/range_steps.h"
#include "preload/trace/steps.h"

#include <stdlib.h>
#include <string.h>

#define VARIABLE "DMI_TRACE"

static struct {
    bool read, wanted, on;
} trace;

static bool is_tier(const char *tier)
{
    static const char *const names[] = { "steps", "kernels", "full" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(tier, names[i]))
            continue;
        activity_want((enum activity_tier)i);
        return true;
    }
    log_line(VARIABLE "=%s is no tier: expected steps, kernels or full; nothing is traced", tier);
    return false;
}

void trace_read(void)
{
    const char *tier = getenv(VARIABLE);
    if (trace.read)
        return;
    trace.read = true;
    trace.wanted = tier && *tier && is_tier(tier);
    if (!trace.wanted)
        return;
    named_read();
    range_steps_use();
    nvtx_ranges_use();
}

bool trace_wanted(void)
{
    trace_read();
    return trace.wanted;
}

void trace_start(void)
{
    int r = collector_start();
    if (r) {
        log_line("no thread could be started for the trace: %s; nothing is traced", strerror(-r));
        return;
    }
    bool kernel = named_source() == DMI_STEP_NAMED_KERNEL;
    if (kernel && driver_table.cuCtxGetCurrent && !driver_table.cuFuncGetName)
        log_line(NAMED_VARIABLE "=%s begins no step: this driver does not name functions (CUDA "
                                "12.3 and later do); graph and range:PATTERN begin one",
                 named_text());
    trace.on = true;
    range_ring_use(true);
    activity_start();
    steps_start(kernel);
}

void trace_meets_driver(void)
{
    if (trace.on)
        activity_start();
}

bool trace_stop(uint64_t end_ns)
{
    if (!trace.on)
        return true;
    trace.on = false;
    range_ring_use(false);
    steps_stop();
    return collector_stop(end_ns);
}

void trace_reset(void)
{
    trace.read = trace.on = false;
    stepring_reset();
    range_ring_reset();
    steps_reset();
    events_reset();
    graphs_reset();
    named_reset();
    activity_reset();
    collector_reset();
}
