/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/trace/summary.h"

#include "core/parts.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>

static void add(struct summary_times *t, uint64_t ns)
{
    t->n++;
    t->of[parts_of(ns, SUMMARY_PARTS)]++;
}

void summary_add(struct summary *s, const struct dmi_step_times *at)
{
    s->steps++;
    s->launches += at->launches;
    s->graphs += at->graph_launches;
    s->own += at->own;
    uint64_t host_ns = at->end_ns > at->begin_ns ? at->end_ns - at->begin_ns : 0;
    s->host_ns += host_ns;
    add(&s->host, host_ns);
    if (!(at->flags & DMI_STEP_HAS_DEVICE))
        return;
    s->timed++;
    add(&s->device, at->device_ns);
    s->device_ns += at->device_ns;
    s->gap_ns += at->flags & DMI_STEP_HAS_GAP && at->gap_ns > 0 ? (uint64_t)at->gap_ns : 0;
}

uint64_t summary_quantile(const struct summary_times *t, double share)
{
    uint64_t rank = (uint64_t)(share * (double)(t->n ? t->n - 1 : 0)), before = 0;
    for (uint32_t i = 0; i < 64 * SUMMARY_PARTS; i++) {
        before += t->of[i];
        if (before > rank)
            return parts_middle(i, SUMMARY_PARTS);
    }
    return 0;
}

static double quantile_ms(const struct summary_times *t, double share)
{
    return (double)summary_quantile(t, share) / 1e6;
}

/* Did steps launch anything? A model on the CPU launches nothing. */
static bool saw_device(const struct summary *s)
{
    return s->timed || s->launches || s->graphs;
}

static void line_of_times(char *to, const struct summary *s)
{
    int n = snprintf(to, SUMMARY_BYTES, "trace: a step takes %.3f ms on the host (p99 %.3f)",
                     quantile_ms(&s->host, 0.5), quantile_ms(&s->host, 0.99));
    if (s->device.n)
        snprintf(to + n, SUMMARY_BYTES - (size_t)n, ", %.3f ms on the device (p99 %.3f)",
                 quantile_ms(&s->device, 0.5), quantile_ms(&s->device, 0.99));
    else
        snprintf(to + n, SUMMARY_BYTES - (size_t)n, "; %s",
                 saw_device(s) ? "none has a time on the device" : "no device was seen");
}

static void line_of_idle(char *to, const struct summary *s)
{
    double all = (double)(s->device_ns + s->gap_ns), each = s->steps ? (double)s->steps : 1;
    snprintf(to, SUMMARY_BYTES,
             "trace: the device is idle between steps for %.1f%% of the time; a step has %.1f "
             "launches of kernels, %.1f of graphs, and %.1f kernels of DMI's own",
             all > 0 ? 100 * (double)s->gap_ns / all : 0, (double)s->launches / each,
             (double)s->graphs / each, (double)s->own / each);
}

static void line_of_ranges(char *to, uint64_t lost)
{
    snprintf(to, SUMMARY_BYTES,
             "trace: %" PRIu64
             " ranges of threads were lost: they came faster than they are taken, nested too deep, "
             "or the disk refused them",
             lost);
}

static void line_of_none(char *to, const char *named)
{
    if (named && *named)
        snprintf(to, SUMMARY_BYTES,
                 "trace: no step came: the engine says none, and nothing ran that "
                 "DMI_TRACE_STEP=%s names",
                 named);
    else
        snprintf(to, SUMMARY_BYTES,
                 "trace: no step came: the engine says none, and DMI_TRACE_STEP names none "
                 "(graph, kernel:PATTERN or range:PATTERN)");
}

size_t summary_lines(const struct summary *s, uint64_t lost, uint64_t ranges_lost,
                     const char *source, const char *dearest, const char *path,
                     char lines[SUMMARY_LINES][SUMMARY_BYTES])
{
    if (!s->steps) {
        line_of_none(lines[0], source);
        if (ranges_lost)
            line_of_ranges(lines[1], ranges_lost);
        return ranges_lost ? 2 : 1;
    }
    snprintf(lines[0], SUMMARY_BYTES,
             "trace: %" PRIu64 " steps, begun by %s; %" PRIu64
             " of them with a time on the device; %" PRIu64 " lost",
             s->steps, source ? source : "nothing", s->timed, lost);
    line_of_times(lines[1], s);
    size_t n = 2;
    if (saw_device(s))
        line_of_idle(lines[n++], s);
    if (*dearest)
        snprintf(lines[n++], SUMMARY_BYTES, "trace: of the time of kernels %s", dearest);
    if (ranges_lost)
        line_of_ranges(lines[n++], ranges_lost);
    snprintf(lines[n++], SUMMARY_BYTES, "trace: dmi-trace steps %s", path);
    return n;
}
