/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/aliases.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int aliases_of(const struct selection_names *requests, struct aliases *out)
{
    int r = 0;
    *out = (struct aliases){ .all = calloc(requests->n + 1, sizeof *out->all) };
    if (!out->all)
        return -ENOMEM;
    for (size_t i = 0; !r && i < requests->n; i++) {
        const struct selection_name *given = &requests->all[i];
        const char *equals = memchr(given->s, '=', given->n);
        size_t n_id = equals ? (size_t)(equals - given->s) : given->n, at = equals ? n_id + 1 : 0;
        r = selection_add_name(&out->ids, given->s, n_id);
        if (!r)
            r = selection_add_name(&out->names, given->s + at, given->n - at);
        if (!r && equals)
            out->all[out->n++] = (struct alias){ given->s, n_id, out->names.all[i].s };
    }
    return r;
}

void aliases_deinit(struct aliases *a)
{
    selection_names_deinit(&a->ids);
    selection_names_deinit(&a->names);
    free(a->all);
}

const char *aliases_implied(const struct aliases *a)
{
    return a->names.n == 1 ? a->names.all[0].s : NULL;
}
