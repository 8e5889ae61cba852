/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A question's answers, lines of "kind<TAB>what<TAB>answer<TAB>value<TAB>unit" on REPORT_FD: each is sent
 * at once, so that those before a crash are not lost.
 */
#include "report.h"

#include "facts.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

static void send(const char *kind, const char *what, const char *answer, const char *value,
                 const char *unit)
{
    char line[512];
    int n = snprintf(line, sizeof line, "%s\t%s\t%s\t%s\t%s\n", kind, what, answer, value, unit);
    if (n >= (int)sizeof line) {
        n = sizeof line - 1;
        line[n - 1] = '\n';
    }
    /* one write: less than a pipe holds, and the reader never waits for us */
    if (write(REPORT_FD, line, (size_t)n) != n)
        _exit(1);
}

void says(const char *what, const char *fmt, ...)
{
    char answer[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(answer, sizeof answer, fmt, ap);
    va_end(ap);
    send("says", what, answer, "", "");
}

void holds(const char *what, bool yes)
{
    send(yes ? "holds" : "breaks", what, yes ? "yes" : "NO", "", "");
}

void figure(const char *what, double value, const char *unit)
{
    char text[32];
    int decimals = value >= 100 || value == (double)(long)value ? 0
                   : value >= 10                                ? 1
                   : value >= 1                                 ? 2
                                                                : 3;
    snprintf(text, sizeof text, "%.*f", decimals, value);
    send("figure", what, "", text, unit);
}

static const char *name_of(CUresult r)
{
    const char *name = NULL;
    if (!driver.cuGetErrorName || driver.cuGetErrorName(r, &name) != CUDA_SUCCESS || !name)
        return "an unknown error";
    return name;
}

static bool is_missing(CUresult r)
{
    return r == CUDA_ERROR_NOT_FOUND && driver.missing && driver.missing == driver.last_call;
}

void result(const char *what, CUresult r)
{
    if (is_missing(r))
        send("absent", what, "this driver has no such function", "", "");
    else
        says(what, "%s (%d)", name_of(r), (int)r);
}

void skipped(const char *why)
{
    send("skip", "not asked", why, "", "");
}

void failed(CUresult r)
{
    char answer[96];
    if (is_missing(r)) {
        send("absent", driver.last_call, "this driver has no such function", "", "");
    } else if (r == CUDA_ERROR_NOT_SUPPORTED && driver.standin) {
        send("absent", driver.last_call, "not implemented here", "", "");
    } else {
        snprintf(answer, sizeof answer, "%s (%d)", name_of(r), (int)r);
        send("error", driver.last_call, answer, "", "");
    }
}
