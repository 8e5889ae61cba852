/* SPDX-License-Identifier: Apache-2.0 */
/* Token ids of a request. One thread, as the run. */
#pragma once

#include "core/err.h"

#include <dmi/read.h>

#include <stdint.h>

#define IDS_NONE INT64_MIN /* of a position: not known */

/**
 * ids_read() - token ids of a request, by position
 * @site: NULL: token_ids
 * @out: gets @n_positions ids, IDS_NONE where the run has none
 * Return: how many are known; -errno with a sentence in @err.
 */
int64_t ids_read(struct err *err, struct dmi_read *run, const char *request, uint64_t n_request,
                 const char *site, int64_t n_positions, int64_t *out);
