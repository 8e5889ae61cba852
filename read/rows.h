/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The payload of tensors. Rows are visited in the order of their records, not of their tensors, so that each
 * record is decoded once. Not locked: the owner's thread.
 */
#pragma once

#include "read/tensors.h"

/* Rows that are visited together: one stretch of one tensor. */
struct rows {
    size_t tensor, stretch; /* indices */
    uint64_t first;         /* index of the stretch's first row in its tensor */
};

struct rows_visitor {
    /* Whether a tensor's rows are read at all; NULL: all are. */
    bool (*wants)(void *ctx, size_t tensor);
    /* Rows as they were captured, borrowed during the call. Return: 0 to go on, else what rows_visit() returns. */
    int (*take)(void *ctx, const struct rows *rows, const struct reader_record *record,
                const uint8_t *data);
    /* The record cannot be decoded: why. Return: as take. */
    int (*damaged)(void *ctx, const struct rows *rows, const struct err *why);
};

/* Return: 0; -ENOMEM, -EIO with a sentence in @err; what a visitor returned. */
int rows_visit(struct err *err, struct reader *reader, const struct tensors *tensors,
               const struct rows_visitor *visitor, void *ctx);
