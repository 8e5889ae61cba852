/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/unmatched.h"

#include "core/atomic.h"
#include "policy/tap_names.h"
#include "preload/eager/taps.h"
#include "preload/function/functions.h"
#include "preload/function/strangers.h"
#include "preload/nvtx/names.h"
#include "preload/session/session.h"

#include <stdio.h>
#include <string.h>

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
            (atomic_load_relaxed(&session_counters(i)->launches) ||
             (i < site && !spec_is_second(other))))
            return;
    }
    taps_nearest(s->about.tap, nearest, sizeof nearest);
    session_problem(site, PROBLEM_NO_MATCH, "%s %s in layers that it takes%s",
                    tap_is_gradient(s->about.tap)
                        ? "no backward pass gave a gradient that is tapped as"
                        : "nothing was tapped as",
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
    char near[512];
    if (session_site(site)->about.tap)
        report_untapped(site);
    else if (session_site(site)->nvtx.pattern)
        report_no_range(site);
    else if (kernel)
        session_problem(site, PROBLEM_NO_MATCH,
                        "kernel %s was loaded, but no launch of it came through the library: "
                        "it was not launched, or by a way past it",
                        kernel);
    else {
        strangers_near(session_site(site)->about.kernel, near, sizeof near);
        session_problem(site, PROBLEM_NO_MATCH, "no launch matched the kernel pattern %s%s",
                        session_site(site)->about.kernel, near);
    }
}

/* Many processes of an engine launch nothing: such a one says so once. Its manifest says it of each site. */
static void report_nothing_matched(void)
{
    struct session_deferred first = { 0 };
    uint32_t n_sites = session.spec->n_sites, i = 0;
    session_defer(&first);
    for (; i < n_sites && !first.any; i++)
        if (!spec_is_second(session_site(i))) /* its entry's other site says it */
            report_no_match(i);
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

/* Entries of one name are variants: of another type, or of another kind of forward. Did launches match one of the others? */
static bool is_variant(uint32_t site)
{
    const struct spec_site *s = session_site(site);
    for (uint32_t i = 0; !s->about.tap && i < session.spec->n_sites; i++)
        if (session_site(i)->line != s->line && has_matched(i) &&
            !strcmp(session_site(i)->about.name, s->about.name))
            return true;
    return false;
}

/* One line for all of them: a spec for several types has as many in each good run. Return: how many there are. */
static uint32_t report_variants(void)
{
    char lines[360] = "";
    uint32_t first = 0, n = 0;
    for (uint32_t i = 0; i < session.spec->n_sites; i++) {
        if (has_matched(i) || !is_variant(i) || spec_is_second(session_site(i)))
            continue;
        size_t used = strlen(lines);
        first = n++ ? first : i;
        if (used + 16 < sizeof lines)
            snprintf(lines + used, sizeof lines - used, "%s%d", used ? ", " : "",
                     session_site(i)->line);
        else if (lines[used - 1] != '.')
            snprintf(lines + used, sizeof lines - used, ", ...");
    }
    if (n > 1)
        session_problem(first, PROBLEM_NO_MATCH,
                        "no launch matched %u entries of names that other entries captured (lines "
                        "%s)",
                        n, lines);
    return n;
}

/* The first site whose launches were counted over the whole run, as nothing began a forward: the others are alike. */
static void report_one_forward(void)
{
    const struct spec *spec = session.spec;
    if (spec->n_kinds || atomic_load_relaxed(&session.counters->steps))
        return;
    for (uint32_t i = 0; i < spec->n_sites; i++) {
        const struct spec_site *s = session_site(i);
        uint64_t n = atomic_load_relaxed(&session_counters(i)->launches);
        if (s->about.tap || n < 2 || !spec_counts_layers(s))
            continue;
        session_problem(
            i, PROBLEM_ONE_FORWARD,
            "all %llu launches count as one forward, since the spec names no forward and the "
            "engine said no steps: if the model ran more than once, occ did not begin anew with "
            "each pass, so layers and addresses are wrong",
            (unsigned long long)n);
        return;
    }
}

void unmatched_report(void)
{
    bool any = false;
    for (uint32_t i = 0; i < session.spec->n_sites; i++)
        any = any || has_matched(i);
    uint32_t n_variants = any ? report_variants() : 0;
    for (uint32_t i = 0; any && i < session.spec->n_sites; i++)
        if (!has_matched(i) && !(n_variants > 1 && is_variant(i)))
            report_no_match(i);
    if (!any)
        report_nothing_matched();
    report_one_forward();
}
