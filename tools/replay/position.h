/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a record stands in the recorded order of its run: by chunk, then by launch as docs/format.md 5 orders them. It
 * is the same whatever is selected, and stays so while the run grows. Pure: any thread.
 */
#pragma once

#include "storage/reader/reader.h"

struct position {
    bool any; /* false: before all records */
    uint64_t chunk, launch, forward;
    uint32_t occurrence, site, record;
};

/* Of a record. */
struct position position_of(const struct reader_record *record);

/* Below 0: @a comes first. */
int position_order(const struct position *a, const struct position *b);

/* Where what was said of rows stands: by the time when it was said. */
struct moment {
    uint64_t time_ns, step;
    uint32_t span;
};

/* As position_order(). */
int moment_order(const struct moment *a, const struct moment *b);
