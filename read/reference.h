/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A safetensors file that a run is compared with: row p of a tensor is position p, unless it comes from dmi-dump
 * export, which says of each row which position it is, and by what its values are scaled. Not locked: the owner's thread.
 */
#pragma once

#include "read/safetensors.h"

#include <stdbool.h>

struct reference_rows {
    struct reference_span {
        int64_t position;
        uint64_t row, n;
    } * spans;
    size_t n;
    uint64_t n_rows;
    bool ordered; /* each position once, ascending: found by position; else row i is row i */
};

struct reference_tensor {
    const struct st_entry *entry;
    const struct reference_rows *rows; /* NULL: row p is position p */
    double scale;                      /* stored value = true value * scale */
};

struct reference {
    struct safetensors st;
    struct reference_tensor *tensors; /* one an entry, in their order */
    struct reference_rows *lists;
    size_t n_lists;
};

/* Return: 0 or -errno with a sentence in @err. */
int reference_open(struct err *err, const char *path, struct reference *out);
/* Accepts a zeroed struct. */
void reference_deinit(struct reference *reference);

/* Return: NULL: no such key. */
const struct reference_tensor *reference_find(const struct reference *reference, const char *key);

/**
 * reference_row() - the row that a captured one is compared with
 * @position: -1: not known
 * @index: of the captured row in its tensor
 * Return: -1: the reference lacks it.
 */
int64_t reference_row(const struct reference_tensor *tensor, int64_t position, uint64_t index);
