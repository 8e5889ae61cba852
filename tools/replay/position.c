/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/replay/position.h"

struct position position_of(const struct reader_record *record)
{
    const struct dmi_record *at = &record->at;
    return (struct position){ true,           record->place, at->launch,    at->forward,
                              at->occurrence, at->site,      record->number };
}

static int order(uint64_t a, uint64_t b)
{
    return a < b ? -1 : a > b;
}

int position_order(const struct position *a, const struct position *b)
{
    int r = order(a->any, b->any);
    if (r || !a->any)
        return r;
    r = order(a->chunk, b->chunk);
    r = r ? r : order(a->launch, b->launch);
    r = r ? r : order(a->forward, b->forward);
    r = r ? r : order(a->occurrence, b->occurrence);
    r = r ? r : order(a->site, b->site);
    return r ? r : order(a->record, b->record);
}

int moment_order(const struct moment *a, const struct moment *b)
{
    int r = order(a->time_ns, b->time_ns);
    r = r ? r : order(a->step, b->step);
    return r ? r : order(a->span, b->span);
}
