/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/trace/recent.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/mman.h>

int recent_init(struct recent *r, uint64_t n_bytes)
{
    uint64_t room = n_bytes / sizeof *r->records;
    *r = (struct recent){ .room = room ? room : 1 };
    size_t size = r->room * sizeof *r->records;
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    if (p == MAP_FAILED) {
        *r = (struct recent){ 0 };
        return -ENOMEM;
    }
    madvise(p, size, MADV_DONTFORK);
    r->records = p;
    return 0;
}

static void let_go(struct recent *r, const struct recent_record *record)
{
    bool stored = record->step & RECENT_STORED;
    uint64_t number = record->step & ~RECENT_STORED;
    r->gone += !stored;
    r->whole = number >= r->whole ? number + 1 : r->whole;
}

void recent_add(struct recent *r, const struct records_event *event, uint64_t number)
{
    struct recent_record *record = &r->records[r->n % r->room];
    if (r->n++ >= r->room)
        let_go(r, record);
    record->event = *event;
    record->step = number;
}

void recent_store(struct recent *r, uint64_t first, uint64_t end,
                  void (*fn)(void *ctx, const struct records_event *event, uint64_t number),
                  void *ctx)
{
    for (uint64_t i = r->n > r->room ? r->n - r->room : 0; i < r->n; i++) {
        struct recent_record *record = &r->records[i % r->room];
        if (record->step < first || record->step >= end) /* one that was stored is beyond all */
            continue;
        fn(ctx, &record->event, record->step);
        record->step |= RECENT_STORED;
        r->stored++;
    }
}

void recent_deinit(struct recent *r)
{
    if (r->records)
        munmap(r->records, r->room * sizeof *r->records);
    *r = (struct recent){ 0 };
}
