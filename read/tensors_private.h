/* SPDX-License-Identifier: Apache-2.0 */
/* What tensors.c and join.c share. One thread. */
#ifndef READ_TENSORS_PRIVATE_H
#define READ_TENSORS_PRIVATE_H

#include "read/tensors.h"

/* A forward of a run whose engine did not say what it computes. */
struct forward {
    uint64_t number;
    uint64_t n_tokens;
    int64_t first_position;
};

struct build {
    const struct reader *reader;
    const struct sites *sites;
    const struct tensors_query *query;
    struct tensors *out;
    struct forward *forwards; /* by number */
    size_t n_forwards;
    size_t *slots; /* hash table of index + 1 */
    size_t n_slots;
};

/* Adds rows of record @index to the tensor of a request (NULL: none). Return: 0, -ENOMEM, -E2BIG. */
int tensors_add(struct build *build, size_t index, const char *request, size_t n_request,
                uint32_t first_row, uint32_t n_rows, int64_t position);

/* Counts the tokens of every forward into build->forwards. Return: 0 or -ENOMEM. */
int join_forwards(struct build *build);

/* Gives the rows of one record to their tensors. Return: as tensors_add(). */
int join_record(struct build *build, size_t index);

#endif
