/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/report.h"

#include "core/grow.h"
#include "core/sorted.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define QUOTE_MAX 40

struct report_line {
    uint32_t line, column;
    size_t order;
    char *text;
};

static char *add_line(struct text_report *report, uint32_t line, uint32_t column, char *text)
{
    if (ONE_MORE(report->lines, report->n_lines))
        return NULL;
    report->lines[report->n_lines] = (struct report_line){ line, column, report->n_lines, text };
    report->n_lines++;
    return text;
}

/* What a terminal would obey becomes a space. */
static void defuse(char *text)
{
    for (unsigned char *p = (unsigned char *)text; *p; p++) {
        if (p[0] == 0xc2 && p[1] >= 0x80 && p[1] < 0xa0) /* U+0080 to U+009F, in UTF-8 */
            p[0] = p[1] = ' ';
        else if (*p < ' ' || *p == 127)
            *p = ' ';
    }
}

/* Is it the name of an option or a variable? Then no user has written the lines of the text. */
static bool has_lines(const char *path)
{
    return strncmp(path, "--", 2) && strcmp(path, "DMI_TAP");
}

void report_add(struct text_report *report, uint32_t line, uint32_t column, const char *fmt, ...)
{
    if (report->n_lines >= REPORT_MAX) {
        report->n_more++;
        return;
    }
    char what[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    char *text = NULL;
    defuse(what); /* names and texts of the file are in it */
    int n = line && has_lines(report->path)
                ? asprintf(&text, "%s:%u:%u: %s", report->path, line, column, what)
                : asprintf(&text, "%s: %s", report->path, what);
    if (n < 0 || !add_line(report, line, column, text)) {
        if (n >= 0)
            free(text);
        report->no_memory = true;
    }
}

static int by_place(const void *va, const void *vb)
{
    const struct report_line *a = va, *b = vb;
    ORDER(a, b, line);
    ORDER(a, b, column);
    return a->order < b->order ? -1 : a->order > b->order;
}

int report_finish(struct text_report *report, char ***lines, size_t *n_lines)
{
    size_t n = report->n_lines;
    if (n)
        qsort(report->lines, n, sizeof *report->lines, by_place);
    char **out = n ? calloc(n + 1, sizeof *out) : NULL;
    int rc = report->no_memory || (n && !out) ? -ENOMEM : 0;
    for (size_t i = 0; i < n; i++) {
        if (rc)
            free(report->lines[i].text);
        else
            out[i] = report->lines[i].text;
    }
    if (!rc && report->n_more) {
        if (asprintf(&out[n], "%s: %zu more %s; mend these first", report->path, report->n_more,
                     report->what ? report->what : "errors") >= 0)
            n++;
    }
    free(report->lines);
    if (!rc && n) {
        *lines = out;
        *n_lines = n;
    } else {
        free(out);
    }
    *report = (struct text_report){ .path = report->path, .what = report->what };
    return rc;
}

const char *report_quote(const char *text, size_t n_text, char *buffer, size_t n_buffer)
{
    size_t shown = n_text;
    if (shown > QUOTE_MAX) {
        shown = QUOTE_MAX;
        while (shown && ((unsigned char)text[shown] & 0xc0) == 0x80) /* not within a character */
            shown--;
    }
    snprintf(buffer, n_buffer, "\"%.*s%s\"", (int)shown, text, shown < n_text ? "..." : "");
    return buffer;
}
