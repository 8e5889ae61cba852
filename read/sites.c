/* SPDX-License-Identifier: Apache-2.0 */
#include "read/sites.h"

#include "storage/map.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Whether a site stands for its name instead of @first, which is a place for edits and has no records. */
static bool takes_over(const struct reader *reader, size_t first, size_t site)
{
    return reader_site(reader, first)->writes && !reader_site(reader, site)->writes;
}

int sites_build(const struct reader *reader, struct sites *out)
{
    struct map names = { 0 };
    *out = (struct sites){ .n = reader_n_sites(reader) };
    out->first = calloc(out->n + 1, sizeof *out->first);
    for (size_t i = 0; out->first && i < out->n; i++) {
        const char *name = reader_site(reader, i)->name;
        size_t *value = map_at(&names, name, strlen(name));
        if (!value) {
            sites_deinit(out);
            break;
        }
        if (*value == MAP_NONE || takes_over(reader, *value, i))
            *value = i;
    }
    for (size_t i = 0; out->first && i < out->n; i++) {
        const char *name = reader_site(reader, i)->name;
        out->first[i] = (uint32_t)*map_at(&names, name, strlen(name));
    }
    map_deinit(&names);
    return out->first ? 0 : -ENOMEM;
}

void sites_deinit(struct sites *sites)
{
    free(sites->first);
    *sites = (struct sites){ 0 };
}
