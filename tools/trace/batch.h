/* SPDX-License-Identifier: Apache-2.0 */
/* What kind of batch a step had: its phase, and its rows as a power of two. Pure. */
#pragma once

#include <dmi/trace.h>

#define BATCH_BUCKETS 34u /* of rows: 0, then powers of two up to 2^32 */

enum batch_phase { PHASE_NONE, PHASE_PREFILL, PHASE_MIXED, PHASE_DECODE, PHASES };

#define BATCH_KINDS (PHASES * BATCH_BUCKETS)

/* For a table. */
static inline const char *batch_word(enum batch_phase phase)
{
    static const char *const words[] = { "-", "prefill", "mixed", "decode" };
    return words[phase];
}

/* A phase that the engine did not say counts as prefill; PHASE_NONE: it said no spans. */
static inline enum batch_phase batch_phase_of(const struct dmi_step_times *at)
{
    if (at->prefill)
        return at->decode ? PHASE_MIXED : PHASE_PREFILL;
    return at->decode ? PHASE_DECODE : PHASE_NONE;
}

/* Rows up to 2^(bucket - 1); 0: none. */
static inline unsigned batch_bucket_of(uint32_t rows)
{
    return rows ? rows == 1 ? 1 : 33 - (unsigned)__builtin_clz(rows - 1) : 0;
}

/* The most rows of the bucket. */
static inline uint64_t batch_rows(unsigned bucket)
{
    return bucket ? 1ull << (bucket - 1) : 0;
}

/* Number of its kind, below BATCH_KINDS. */
static inline unsigned batch_kind_of(const struct dmi_step_times *at)
{
    return batch_phase_of(at) * BATCH_BUCKETS + batch_bucket_of(at->rows);
}
