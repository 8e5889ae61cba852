/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/unmatched.h"

#include "core/atomic.h"
#include "preload/eager/taps.h"
#include "preload/function/functions.h"
#include "preload/nvtx/names.h"
#include "preload/session/session.h"

static void report_no_range(uint32_t site)
{
    char why[384];
    nvtx_names_why(session.spec, site, why, sizeof why);
    session_problem(site, PROBLEM_NO_MATCH, "%s", why);
}

/* A pattern stands for names that some engines lack: it is reported where none of them came. */
static void report_untapped(uint32_t site)
{
    const struct spec_site *s = session_site(site);
    char nearest[512];
    for (uint32_t i = 0; i < session.spec->n_sites; i++) {
        const struct spec_site *other = session_site(i);
        if (other->line == s->line && other->about.tap &&
            (atomic_load_relaxed(&session_counters(i)->launches) || (i < site && i != site)))
            return;
    }
    taps_nearest(s->about.tap, nearest, sizeof nearest);
    session_problem(site, PROBLEM_NO_MATCH, "nothing was tapped as %s in layers that it takes%s",
                    s->about.tap, nearest);
}

/* Launches of the unsupported ones, of those that were given up, and of those in bodies, matched. */
static bool has_matched(uint32_t site)
{
    return atomic_load_relaxed(&session_counters(site)->launches) ||
           session_reported(site, PROBLEM_UNSUPPORTED) ||
           session_reported(site, PROBLEM_GIVEN_UP) || session_reported(site, PROBLEM_UNCOUNTED);
}

static void report_no_match(uint32_t site)
{
    const char *kernel = functions_of_site(site);
    if (session_site(site)->about.tap)
        report_untapped(site);
    else if (session_site(site)->nvtx.pattern)
        report_no_range(site);
    else if (kernel)
        session_problem(site, PROBLEM_NO_MATCH,
                        "kernel %s was loaded, but no launch of it came through the library: "
                        "it was not launched, or by a way past it",
                        kernel);
    else
        session_problem(site, PROBLEM_NO_MATCH, "no launch matched the kernel pattern %s",
                        session_site(site)->about.kernel);
}

/* Many processes of an engine launch nothing: such a one says so once. Its manifest says it of each site. */
static void report_nothing_matched(void)
{
    struct session_deferred first = { 0 };
    uint32_t n_sites = session.spec->n_sites, i = 0;
    session_defer(&first);
    while (i < n_sites && !first.any)
        report_no_match(i++);
    session_defer(NULL);
    if (first.any && n_sites > i)
        session_problem(first.site, first.problem, "%s; nor did a launch match the %u other sites",
                        first.sentence, n_sites - i);
    else
        session_report_deferred(&first);
    session_log_problems(false);
    while (i < n_sites)
        report_no_match(i++);
    session_log_problems(true);
}

void unmatched_report(void)
{
    bool any = false;
    for (uint32_t i = 0; i < session.spec->n_sites; i++)
        any = any || has_matched(i);
    for (uint32_t i = 0; any && i < session.spec->n_sites; i++)
        if (!has_matched(i))
            report_no_match(i);
    if (!any)
        report_nothing_matched();
}
