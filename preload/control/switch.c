/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/control/switch.h"

#include "core/atomic.h"
#include "core/clock.h"
#include "core/log.h"
#include "preload/base/session.h"

#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

#define MAX_PATTERN 1024 /* bytes; a longer one matches no name */

/* Is the site meant by one of the patterns? */
static bool is_meant(uint32_t site, const char *patterns)
{
    char word[MAX_PATTERN];
    for (size_t n; *(patterns += strspn(patterns, " \t")); patterns += n) {
        n = strcspn(patterns, " \t");
        if (n >= sizeof word)
            continue;
        memcpy(word, patterns, n);
        word[n] = 0;
        if (!fnmatch(word, session_site(site)->about.name, 0))
            return true;
    }
    return false;
}

static bool would_change(uint32_t site, bool on)
{
    return atomic_load_relaxed(&session.off[site]) == (on ? SITE_OFF : SITE_ON);
}

static int note(const char *patterns, bool on, enum switch_by by)
{
    char what[512];
    bool asked = by == SWITCH_BY_CONTROL;
    const struct run_change change = { .time_ns = clock_real_ns(),
                                       .launch = atomic_load_relaxed(&session.next_launch),
                                       .step = atomic_load_relaxed(&session.next_step),
                                       .what = what };
    snprintf(what, sizeof what, "sites %s %.400s%s", on ? "on" : "off", patterns,
             asked ? "" : ", by dmi_site_enable()");
    int r = (asked ? run_change : run_change_later)(session.run, &change);
    if (!r && asked)
        log_line("changed: %.200s", what);
    return r;
}

int switch_sites(const char *patterns, bool on, enum switch_by by)
{
    int n = 0;
    bool changes = by == SWITCH_BY_CONTROL;
    for (uint32_t i = 0; i < session.spec->n_sites; i++)
        if (is_meant(i, patterns)) {
            n++;
            changes = changes || would_change(i, on);
        }
    int r = n && changes && session_run() ? note(patterns, on, by) : 0;
    for (uint32_t i = 0; i < session.spec->n_sites && n && !r; i++)
        if (is_meant(i, patterns))
            session_site_switch(i, on);
    return r ? r : n;
}
