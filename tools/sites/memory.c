/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/sites/memory.h"

#include "core/err.h"
#include "core/grow.h"

#include <stdlib.h>
#include <string.h>

#define PAGE 4096u

/* Part of a run that lies in one page. */
struct fragment {
    uint64_t time;
    uint32_t first, n;
    const uint8_t *data;
};

struct memory_page {
    uint64_t address; /* in pages, and one: 0 is free */
    struct fragment *fragments;
    size_t n, room;
};

static struct memory_page *slot_of(struct memory_page *pages, size_t room, uint64_t address)
{
    size_t i = (size_t)(address * 0x9E3779B97F4A7C15ull >> 24) & (room - 1);
    while (pages[i].address && pages[i].address != address)
        i = (i + 1) & (room - 1);
    return &pages[i];
}

static int make_room(struct memory *m)
{
    if (2 * m->n < m->room)
        return 0;
    size_t room = m->room ? 2 * m->room : 1 << 14;
    struct memory_page *pages = calloc(room, sizeof *pages);
    if (!pages)
        return -ENOMEM;
    for (size_t i = 0; i < m->room; i++)
        if (m->pages[i].address)
            *slot_of(pages, room, m->pages[i].address) = m->pages[i];
    free(m->pages);
    m->pages = pages;
    m->room = room;
    return 0;
}

static int add_fragment(struct memory *m, uint64_t page_number, const struct fragment *fragment)
{
    TRY(make_room(m));
    struct memory_page *page = slot_of(m->pages, m->room, page_number + 1);
    m->n += !page->address;
    page->address = page_number + 1;
    int r = grow((void **)&page->fragments, page->n, &page->room, sizeof *page->fragments, 2);
    if (!r)
        page->fragments[page->n++] = *fragment;
    return r;
}

int memory_build(const struct recording *rec, struct memory *out)
{
    int r = 0;
    *out = (struct memory){ 0 };
    for (size_t i = 0; !r && i < rec->n_runs; i++) {
        const struct rec_run *run = &rec->runs[i];
        for (uint64_t at = 0; !r && at < run->n_bytes;) {
            uint64_t address = run->address + at, left = run->n_bytes - at;
            uint32_t first = (uint32_t)(address % PAGE);
            uint32_t n = left < PAGE - first ? (uint32_t)left : PAGE - first;
            r = add_fragment(out, address / PAGE,
                             &(struct fragment){ run->time, first, n, run->data + at });
            at += n;
        }
    }
    if (r)
        memory_deinit(out);
    return r;
}

void memory_deinit(struct memory *m)
{
    for (size_t i = 0; i < m->room; i++)
        free(m->pages[i].fragments);
    free(m->pages);
    *m = (struct memory){ 0 };
}

/* The part of @fragment in [@first, @first + @n) that nothing later said. Return: bytes that became known. */
static size_t lay(const struct fragment *fragment, uint32_t first, uint32_t n, uint8_t *out,
                  uint8_t *known)
{
    uint32_t from = fragment->first > first ? fragment->first : first;
    uint32_t end =
        fragment->first + fragment->n < first + n ? fragment->first + fragment->n : first + n;
    size_t fresh = 0;
    for (uint32_t i = from; i < end; i++) {
        if (known[i - first])
            continue;
        out[i - first] = fragment->data[i - fragment->first];
        known[i - first] = 1;
        fresh++;
    }
    return fresh;
}

/* One page: the latest fragments come first. */
static size_t read_page(const struct memory *m, uint64_t address, uint32_t n, uint64_t time,
                        uint8_t *out, uint8_t *known)
{
    size_t found = 0;
    memset(out, 0, n);
    memset(known, 0, n);
    const struct memory_page *page =
        m->room ? slot_of(m->pages, m->room, address / PAGE + 1) : NULL;
    for (size_t i = page ? page->n : 0; i > 0 && found < n; i--)
        if (page->fragments[i - 1].time <= time)
            found += lay(&page->fragments[i - 1], (uint32_t)(address % PAGE), n, out, known);
    return found;
}

size_t memory_read(const struct memory *m, uint64_t address, size_t n, uint64_t time, void *out,
                   uint8_t *known)
{
    uint8_t own[PAGE];
    size_t found = 0;
    for (size_t at = 0; at < n;) {
        uint64_t left = PAGE - (address + at) % PAGE;
        uint32_t part = n - at < left ? (uint32_t)(n - at) : (uint32_t)left;
        found +=
            read_page(m, address + at, part, time, (uint8_t *)out + at, known ? known + at : own);
        at += part;
    }
    return found;
}
