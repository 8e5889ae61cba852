/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Entries of the site dictionary that share a name (the prefill and the decode variant of a tensor) are one site to
 * users. Not locked: the owner's thread.
 */
#pragma once

#include "storage/reader/reader.h"

#include <stdbool.h>
#include <stdint.h>

struct sites {
    uint32_t *
        first; /* by site id: the first id of the same name that is captured; where none is, the first */
    size_t n;
};

/* Is @site what stands for its name? Names of places for edits that are not captured have none. */
static inline bool sites_is_shown(const struct reader *reader, const struct sites *sites,
                                  size_t site)
{
    return sites->first[site] == site && !reader_site(reader, site)->writes;
}

/* Return: 0 or -ENOMEM. sites_deinit() accepts a zeroed struct. */
int sites_build(const struct reader *reader, struct sites *out);
void sites_deinit(struct sites *sites);
