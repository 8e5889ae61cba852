/* SPDX-License-Identifier: Apache-2.0 */
/* What runs of ranks contradict each other in, and words for it. One thread a reader. */
#pragma once

#include "storage/reader/reader_private.h"

struct rank_text {
    char text[64];
};
/* "tp 1, pp 0, dp 0" */
struct rank_text rank_text(const int32_t ranks[8]);

struct shape_text {
    char text[128];
};
/* "f32 [5, 64]" */
struct shape_text shape_text(const struct reader_record *record);

/* Whether two records are of one shape, but for dimension @free. */
bool reader_same_shape(const struct reader_record *a, const struct reader_record *b, uint32_t free);
/* Whether both say the same rank, whatever the sizes. */
bool reader_same_rank(const struct reader_rank *a, const struct reader_rank *b);
/* How many ranks an axis has, as the steps of one say. */
static inline int32_t reader_n_ranks(const int32_t ranks[8], uint32_t axis)
{
    return ranks[2 * axis + 1] > 1 ? ranks[2 * axis + 1] : 1;
}
/* Takes out runs that are there twice, and ranks. Return: 0 or -ENOMEM. */
int reader_leave_twins(struct reader_ranks *ranks);
/* Names them, and ranks that say different sizes. */
void reader_note_ranks(struct reader *reader);
/* Finds sites by which ranks mean different tensors. Return: 0 or -ENOMEM. */
int reader_find_contradictions(struct reader *reader);
/* That of a site, by its key; NULL: there is none. */
struct reader_contradiction *reader_contradiction_of(const struct reader_ranks *ranks,
                                                     uint64_t site, int32_t dp, int32_t pp);
