/* SPDX-License-Identifier: Apache-2.0 */
/* The one place that tells one from several in a sentence. Pure: any thread. */
#pragma once

#include <stdint.h>

/* word_for(n, "row is", "rows are") */
static inline const char *word_for(uint64_t n, const char *one, const char *several)
{
    return n == 1 ? one : several;
}
