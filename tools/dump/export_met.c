/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/dump/export_met.h"

#include "tools/common/say.h"

#include <errno.h>
#include <stdlib.h>

int export_met_note(struct export_met *m, const struct selection *select,
                    const struct requests *requests, bool *none)
{
    *none = select->requests.n > 0;
    if (!m->all && !(m->all = calloc(select->requests.n + 1, sizeof *m->all)))
        return -ENOMEM;
    for (size_t i = 0; i < select->requests.n; i++) {
        const struct selection_name *name = &select->requests.all[i];
        bool found = requests_find(requests, name->s, name->n) != NULL;
        m->all[i] |= found;
        *none &= !found;
    }
    return 0;
}

bool export_met_complain(const struct export_met *m, const struct selection *select)
{
    bool any = false;
    for (size_t i = 0; m->all && i < select->requests.n; i++) {
        if (m->all[i])
            continue;
        complain("no run has the request '%s' (dmi-dump list --requests)",
                 select->requests.all[i].s);
        any = true;
    }
    return any;
}

void export_met_deinit(struct export_met *m)
{
    free(m->all);
    m->all = NULL;
}
