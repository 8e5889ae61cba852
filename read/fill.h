/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cached tokens: no row of them is in any record of their request, as a prefix cache had them. Another request of the run has
 * computed the same rows, where its tokens have the same ids at every position from 0 on: the donor. Not locked: the owner's
 * thread. Source: docs/format.md 8.
 */
#pragma once

#include "read/requests.h"
#include "read/sites.h"
#include "read/tensors.h"
#include "storage/text.h"

/**
 * fill_build() - tensors_build(), and where @select says `fill_cached`, rows of cached tokens from their donors
 * @reader: with the records of all requests and of the site token_ids
 * @select: NULL: all
 *
 * Of several donors of a row the one whose first step is the earliest counts. A donor has the row itself, from a step not
 * after the one in which the engine found the token in its cache; the same site, layer, element type, width and scale; and it
 * shares the cache: see shares_cache() in fill.c. A stretch that was taken has its donor; what could not be taken is left
 * out, and its tensor says why. A tensor whose request has no row of its own gets none.
 * Return: as tensors_build().
 */
int fill_build(struct err *err, struct reader *reader, const struct sites *sites,
               const struct requests *requests, const struct selection *select,
               struct tensors *out);

/* Adds why rows of cached tokens are missing, to stand after what is missing; nothing where none was looked for. */
void fill_add_fault(struct text *to, const struct tensor *tensor);
