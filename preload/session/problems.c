/* SPDX-License-Identifier: Apache-2.0 */
/* What the session reports of a site, and sites that are switched off. */
#include "preload/session/session_private.h"

#include "core/atomic.h"
#include "core/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* May this thread use the run? After session_enter() or session_attach(). */
static bool session_is_open(void)
{
    return session_thread.open;
}

/* ------------------------------------------------------------------------- problems */

static const char *const problem_names[] = {
    [PROBLEM_BAD_POINTER] = "bad_pointer", [PROBLEM_BAD_EXPR] = "bad_expr",
    [PROBLEM_TOO_LARGE] = "too_large",     [PROBLEM_COUNT] = "count_differs",
    [PROBLEM_NO_MATCH] = "no_match",       [PROBLEM_UNSUPPORTED] = "unsupported",
    [PROBLEM_COPY_FAILED] = "copy_failed", [PROBLEM_NO_PARAMS] = "no_parameter_info",
    [PROBLEM_PRESSURE] = "pressure",       [PROBLEM_NO_STEP] = "no_step",
    [PROBLEM_GIVEN_UP] = "switched_off",   [PROBLEM_UNCOUNTED] = "uncounted",
    [PROBLEM_PASSES] = "several_passes",   [PROBLEM_ONE_FORWARD] = "one_forward",
};

bool session_reported(uint32_t site, enum problem problem)
{
    return atomic_load_relaxed(&session.reported[site]) & (1u << problem);
}

void session_about(const char *kernel)
{
    session_thread.kernel = kernel;
}

/* Is the site's pattern ^NAME$ of the one kernel? */
static bool names_one(uint32_t site, const char *kernel)
{
    const char *pattern = session_site(site)->about.kernel;
    size_t n = strlen(kernel);
    return pattern && pattern[0] == '^' && !strncmp(pattern + 1, kernel, n) &&
           !strcmp(pattern + 1 + n, "$");
}

/* A pattern may stand for many kernels: which one it was is said too. */
static void compose(char *to, size_t size, uint32_t site, const char *fmt, va_list ap)
{
    char kernel[200];
    vsnprintf(to, size, fmt, ap);
    size_t n = strlen(to);
    if (!session_thread.kernel || names_one(site, session_thread.kernel))
        return;
    snprintf(kernel, sizeof kernel, "%s", session_thread.kernel);
    if (!strstr(to, kernel))
        snprintf(to + n, size - n, " (kernel %s)", kernel);
}

static void defer(struct session_deferred *d, uint32_t site, enum problem problem, const char *fmt,
                  va_list ap)
{
    if (d->any)
        return;
    d->any = true;
    d->site = site;
    d->problem = problem;
    compose(d->sentence, sizeof d->sentence, site, fmt, ap);
}

/* The other site of the entry, where edits write what is captured, too; @site: there is none. */
static uint32_t other_of_entry(uint32_t site)
{
    const struct spec_site *s = session_site(site);
    for (uint32_t i = site ? site - 1 : 1; i <= site + 1 && i < session.spec->n_sites; i++)
        if (i != site && session_site(i)->line == s->line &&
            !strcmp(session_site(i)->about.name, s->about.name))
            return i;
    return site;
}

/* Was the same said of the entry's other site? A reader sees one entry. */
static bool said_of_entry(uint32_t site, enum problem problem, const char *sentence)
{
    uint32_t other = other_of_entry(site);
    if (other == site)
        return false;
    const char *said = atomic_load_acquire(&session.sentences[other]);
    atomic_store_release(&session.sentences[site],
                         strdup(sentence)); /* for good: another thread may read the one before */
    return said && session_reported(other, problem) && !strcmp(said, sentence);
}

static void problem(uint32_t site, enum problem problem, const char *fmt, va_list ap)
{
    const struct spec_site *s = session_site(site);
    if (session_is_for(SESSION_RECORDING)) /* its one site is the library's own */
        return;
    if ((problem == PROBLEM_NO_MATCH || problem == PROBLEM_COUNT) && spec_is_second(s))
        return; /* its entry's other site says so */
    if (!session_is_open() || session_reported(site, problem) ||
        __atomic_fetch_or(&session.reported[site], 1u << problem, __ATOMIC_RELAXED) &
            (1u << problem))
        return;
    int saved = errno;
    char sentence[512];
    compose(sentence, sizeof sentence, site, fmt, ap);
    bool said = said_of_entry(site, problem, sentence);
    if (!said && !session_thread.unlogged)
        log_line("site %s (%s:%d): %s", s->about.name, session.spec->path, s->line, sentence);
    struct run *run = said ? NULL : session_run();
    if (run)
        run_problem(run, s->about.name, problem_names[problem], sentence);
    errno = saved;
}

void session_problem(uint32_t site, enum problem which, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    if (session_thread.deferred)
        defer(session_thread.deferred, site, which, fmt, ap);
    else
        problem(site, which, fmt, ap);
    va_end(ap);
}

void session_log_problems(bool on)
{
    session_thread.unlogged = !on;
}

void session_defer(struct session_deferred *d)
{
    if (d)
        d->any = false;
    session_thread.deferred = d;
}

void session_report_deferred(struct session_deferred *d)
{
    if (d->any)
        session_problem(d->site, d->problem, "%s", d->sentence);
    d->any = false;
}

bool session_write_failed(int error)
{
    unsigned bit = (unsigned)error % 256;
    uint64_t mask = 1ull << bit % 64;
    return !(__atomic_fetch_or(&session.write_errors[bit / 64], mask, __ATOMIC_RELAXED) & mask);
}

/* ------------------------------------------------------------------------- switches */

void session_site_switch(uint32_t site, bool on)
{
    uint8_t before = on ? SITE_OFF : SITE_ON;
    uint8_t after = on ? SITE_ON : SITE_OFF;
    atomic_cas_acq_rel(&session.off[site], &before,
                       after);                /* of one that is given up nothing changes */
    atomic_add_acq_rel(&session.switches, 1); /* acquired by follow_switches() */
}

static void report(uint32_t site, enum problem which, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    problem(site, which, fmt, ap);
    va_end(ap);
}

/* The line says since when: a reader of the account must know what it leaves out. */
static void give_up(uint32_t site, const char *fmt, va_list ap)
{
    char why[384];
    vsnprintf(why, sizeof why, fmt, ap);
    struct run *run = session_is_open() ? session_run() : NULL;
    uint64_t n = run ? atomic_load_relaxed(&session_counters(site)->launches) : 0;
    report(site, PROBLEM_GIVEN_UP, "%s after %llu of its launches; later ones are in no account",
           why, (unsigned long long)n);
}

void session_give_up(uint32_t site, const char *fmt, ...)
{
    va_list ap;
    atomic_store_relaxed(&session.off[site], SITE_GIVEN_UP);
    atomic_add_acq_rel(&session.switches, 1); /* acquired by follow_switches() */
    va_start(ap, fmt);
    give_up(site, fmt, ap);
    va_end(ap);
}

void session_give_up_all(const char *why)
{
    for (uint32_t i = 0; i < session.spec->n_sites; i++)
        session_give_up(i, "%s: switched off", why);
}
