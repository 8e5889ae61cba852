/* SPDX-License-Identifier: Apache-2.0 */
/* What dmi-top shows of a trace (<dmi/live.h>), by relaxed stores, as preload/context/gauge.h does. Thread: the collector, with a run. */
#pragma once

#include "core/atomic.h"
#include "preload/session/session.h"
#include "preload/trace/summary.h"

#include <dmi/live.h>

/* All that is known of the steps so far. @lost: steps that are in no file. */
static inline void gauge_steps(const struct summary *s, uint64_t lost)
{
    struct dmi_live *to = session.live;
    if (!to)
        return;
    atomic_store_relaxed(&to->traces, (uint64_t)1);
    atomic_store_relaxed(&to->trace_steps, s->steps);
    atomic_store_relaxed(&to->trace_host_ns, s->host_ns);
    atomic_store_relaxed(&to->trace_timed, s->timed);
    atomic_store_relaxed(&to->trace_device_ns, s->device_ns);
    atomic_store_relaxed(&to->trace_gap_ns, s->gap_ns);
    atomic_store_relaxed(&to->trace_lost, lost);
}
