/* SPDX-License-Identifier: Apache-2.0 */
#include "storage/reader/reader_private.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_FINDINGS 10000

static void add(struct reader *r, struct reader_finding finding, const char *fmt, va_list ap)
{
    if (r->vanished || r->n_notes >= MAX_FINDINGS ||
        reader_grow((void **)&r->notes, r->n_notes, &r->notes_room, sizeof *r->notes))
        return;
    char *text = NULL, *file = strdup(finding.file);
    if (vasprintf(&text, fmt, ap) < 0 || !file) {
        free(file);
        return;
    }
    finding.file = file;
    finding.text = text;
    r->notes[r->n_notes++] = (struct reader_note_entry){ finding, r->judging, r->walking };
}

void reader_note(struct reader *r, bool damage, const char *file, int64_t chunk, uint64_t offset,
                 const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    add(r,
        (struct reader_finding){ .damage = damage, .file = file, .chunk = chunk, .offset = offset },
        fmt, ap);
    va_end(ap);
}

void reader_note_unknown(struct reader *r, const char *file, int64_t chunk, uint64_t offset,
                         const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    add(r,
        (struct reader_finding){ .unknown = true, .file = file, .chunk = chunk, .offset = offset },
        fmt, ap);
    va_end(ap);
}

void reader_forget(struct reader *r, uint32_t segment)
{
    size_t kept = 0;
    for (size_t i = 0; i < r->n_notes; i++) {
        struct reader_note_entry *e = &r->notes[i];
        if (segment == UINT32_MAX ? e->judged : e->segment == segment) {
            free((char *)(uintptr_t)e->finding.file);
            free((char *)(uintptr_t)e->finding.text);
        } else {
            r->notes[kept++] = *e;
        }
    }
    r->n_notes = kept;
}

void reader_forget_all(struct reader *r)
{
    for (size_t i = 0; i < r->n_notes; i++) {
        free((char *)(uintptr_t)r->notes[i].finding.file);
        free((char *)(uintptr_t)r->notes[i].finding.text);
    }
    r->n_notes = 0;
}

size_t reader_n_findings(const struct reader *r)
{
    return r->n_notes;
}

const struct reader_finding *reader_finding(const struct reader *r, size_t i)
{
    return i < r->n_notes ? &r->notes[i].finding : NULL;
}
