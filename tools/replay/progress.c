/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/replay/progress.h"

#include "core/clock.h"
#include "tools/common/say.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#define FIRST_NS 1000000000u
#define EVERY_NS 250000000u

void progress_begin(struct progress *p)
{
    *p = (struct progress){ .on = isatty(STDERR_FILENO), .start_ns = clock_mono_ns() };
}

void progress_show(struct progress *p, uint64_t n_done, uint64_t n_all, uint64_t n_bytes, bool open)
{
    uint64_t now = clock_mono_ns();
    if (!p->on || now - p->start_ns < FIRST_NS || now - p->last_ns < EVERY_NS)
        return;
    char done[32], all[32], size[24], rate[24], left[32] = "";
    double seconds = (double)(now - p->start_ns) / 1e9;
    if (!open && n_done) {
        uint64_t s = (uint64_t)(seconds * (double)(n_all - n_done) / (double)n_done);
        snprintf(left, sizeof left, ", %" PRIu64 ":%02" PRIu64 " left", s / 60, s % 60);
    }
    fprintf(stderr, "\r%s of %s records%s, %s, %s/s%s\033[K", grouped(n_done, done),
            grouped(n_all, all), open ? " so far" : "", bytes_text((double)n_bytes, size),
            bytes_text((double)n_bytes / seconds, rate), left);
    p->last_ns = now;
    p->shown = true;
}

void progress_end(struct progress *p)
{
    if (p->shown)
        fputs("\r\033[K", stderr);
    p->shown = false;
}
