/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loss masks from outside: a file of JSON lines says for each request which of its tokens count in a loss. A line is
 * {"request": ID, "spans": [[A, B], ...]} with half-open ranges of positions, or {"request": ID, "mask": [0, 1, ...]} with
 * a number a token; other members are ignored, so are empty lines. ID is the id as readers show it (ID~2). Not locked: the
 * owner's thread.
 */
#pragma once

#include "core/err.h"
#include "read/range.h"
#include "read/requests.h"

#include <stddef.h>

struct mask {
    char *id; /* owned; UTF-8, may hold NUL */
    size_t n_id;
    uint64_t line;      /* of the file, from 1 */
    struct range *ones; /* positions that count; they may overlap */
    size_t n_ones, room;
    bool is_list;     /* it has a number a token */
    int64_t n_tokens; /* of such a list */
    bool met;         /* masks_match() found a request of that id */
};

struct masks {
    char *path;
    struct mask *all; /* in the order of the file */
    size_t n, room;
    struct map by_id;
};

/* Return: 0; -EINVAL: a line is none of these; -ENOMEM, -errno; with a sentence in @err that begins FILE:LINE. */
int masks_read(struct err *err, const char *path, struct masks *out);
/* Accepts a zeroed struct. */
void masks_deinit(struct masks *masks);

/**
 * masks_match() - find the requests that the masks are of
 * Return: 0; -EINVAL: a mask has another length than its request, a span lies outside of it, or an earlier call, too, found
 * a request of that id; -ENOMEM; with a sentence in @err.
 */
int masks_match(struct err *err, struct masks *masks, const struct requests *requests);

/* The mask of a request; @id: as it is stored. Return: NULL: the file has none, or no memory. */
const struct mask *masks_find(const struct masks *masks, const char *id, size_t n_id);

/* Sets @out[i] to 1 where position @first + i counts, and to 0 elsewhere. */
void mask_fill(const struct mask *mask, int64_t first, size_t n, int64_t *out);
