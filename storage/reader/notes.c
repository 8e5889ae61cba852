/* SPDX-License-Identifier: Apache-2.0 */
#include "storage/reader/reader_notes.h"

#include "storage/reader/reader_private.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_FINDINGS 10000

static void add(struct reader_notes *n, struct reader_finding finding, const char *fmt, va_list ap)
{
    if (n->vanished || n->n >= MAX_FINDINGS || GROW(n->list, n->n, n->room))
        return;
    char *text = NULL, *file = strdup(finding.file);
    if (vasprintf(&text, fmt, ap) < 0 || !file) {
        free(file);
        return;
    }
    finding.file = file;
    finding.text = text;
    n->list[n->n++] = (struct reader_note_entry){ finding, n->judging, n->walking };
}

void reader_note(struct reader_notes *n, bool damage, const char *file, int64_t chunk,
                 uint64_t offset, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    add(n,
        (struct reader_finding){ .damage = damage, .file = file, .chunk = chunk, .offset = offset },
        fmt, ap);
    va_end(ap);
}

void reader_note_unknown(struct reader_notes *n, const char *file, int64_t chunk, uint64_t offset,
                         const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    add(n,
        (struct reader_finding){ .unknown = true, .file = file, .chunk = chunk, .offset = offset },
        fmt, ap);
    va_end(ap);
}

void reader_forget(struct reader_notes *n, uint32_t segment)
{
    size_t kept = 0;
    for (size_t i = 0; i < n->n; i++) {
        struct reader_note_entry *e = &n->list[i];
        if (segment == UINT32_MAX ? e->judged : e->segment == segment) {
            free((char *)(uintptr_t)e->finding.file);
            free((char *)(uintptr_t)e->finding.text);
        } else {
            n->list[kept++] = *e;
        }
    }
    n->n = kept;
}

void reader_forget_all(struct reader_notes *n)
{
    for (size_t i = 0; i < n->n; i++) {
        free((char *)(uintptr_t)n->list[i].finding.file);
        free((char *)(uintptr_t)n->list[i].finding.text);
    }
    n->n = 0;
}

bool reader_note_vanished(struct reader_notes *n)
{
    n->vanished |= !n->missing_is_damage;
    return n->vanished;
}

bool reader_take_vanished(struct reader_notes *n)
{
    bool vanished = n->vanished;
    n->vanished = false;
    return vanished;
}

void reader_swap_notes(struct reader_notes *a, struct reader_notes *b)
{
    struct reader_notes was = *a;
    a->list = b->list, a->n = b->n, a->room = b->room;
    b->list = was.list, b->n = was.n, b->room = was.room;
}

size_t reader_n_findings(const struct reader *r)
{
    return r->notes.n;
}

const struct reader_finding *reader_finding(const struct reader *r, size_t i)
{
    return i < r->notes.n ? &r->notes.list[i].finding : NULL;
}
