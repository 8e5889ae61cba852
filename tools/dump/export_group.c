/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/dump/export_group.h"

#include <string.h>

struct group group_at(const struct exporter *x, size_t at)
{
    size_t end = at + 1;
    while (end < x->n_targets && export_same_request(x->targets[at].tensor, x->targets[end].tensor))
        end++;
    return (struct group){ &x->targets[at], end - at };
}

const struct target *group_find(const struct group *g, const char *site, int32_t layer)
{
    for (size_t i = 0; i < g->n; i++) {
        const struct tensor *t = g->first[i].tensor;
        if (t->layer == layer && !strcmp(t->site->name, site))
            return &g->first[i];
    }
    return NULL;
}

void group_leave_out(struct exporter *x, const struct group *g, const char *what, const char *fault)
{
    const struct tensor *t = g->first->tensor;
    if (t->request)
        export_leave_out(x, "request '%.*s' is left out: %s %s", (int)t->n_request, t->request,
                         what, fault);
    else
        export_leave_out(x, "%s %s", what, fault);
}
