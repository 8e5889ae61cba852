/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Entries of the site dictionary that share a name (the prefill and the decode variant of a tensor) are one site to
 * users. Not locked: the owner's thread.
 */
#ifndef READ_SITES_H
#define READ_SITES_H

#include "storage/reader/reader.h"

#include <stdint.h>

struct sites {
    uint32_t *first; /* by site id: the first id of the same name */
    size_t n;
};

/* Return: 0 or -ENOMEM. sites_deinit() accepts a zeroed struct. */
int sites_build(const struct reader *reader, struct sites *out);
void sites_deinit(struct sites *sites);

#endif
