/* SPDX-License-Identifier: Apache-2.0 */
/* A range of numbers, and which tokens of a request are meant. Pure; any thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct range {
    int64_t first, end; /* end: after the last */
};

/* Whether @v lies in it. */
static inline bool range_has(const struct range *range, int64_t v)
{
    return v >= range->first && v < range->end;
}

/* Which tokens of a request. */
enum token_kind {
    TOKENS_ALL = 0,
    TOKENS_RANGE,     /* by position */
    TOKENS_PROMPT,    /* before the first that was generated */
    TOKENS_GENERATED, /* from there on */
    TOKENS_LAST,      /* the last one that counts */
};
