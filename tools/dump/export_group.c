/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/dump/export_group.h"

#include "core/cleanup.h"

#include <string.h>

struct target_group group_at(const struct exporter *x, size_t at)
{
    size_t end = at + 1;
    while (end < x->n_targets && export_same_request(x->targets[at].tensor, x->targets[end].tensor))
        end++;
    return (struct target_group){ &x->targets[at], end - at };
}

const struct target *group_find(const struct target_group *g, const char *site, int32_t layer)
{
    for (size_t i = 0; i < g->n; i++) {
        const struct tensor *t = g->first[i].tensor;
        if (t->layer == layer && !strcmp(t->site->name, site))
            return &g->first[i];
    }
    return NULL;
}

void group_leave_out(struct exporter *x, const struct target_group *g, enum sample_fault why,
                     const char *what, const char *fault)
{
    const struct tensor *t = g->first->tensor;
    if (t->request)
        export_leave_out(x, why, "request '%.*s' is left out: %s %s", (int)t->n_request, t->request,
                         what, fault);
    else
        export_leave_out(x, why, "rows without a request are left out: %s %s", what, fault);
}

bool group_is_whole(struct exporter *x, const struct target_group *g, const struct target *target)
{
    _cleanup_(text_deinit) struct text why = { 0 };
    enum sample_fault fault = sample_fault(target->tensor, &x->requests, &x->options->select, &why);
    if (fault)
        group_leave_out(x, g, fault, target->tensor->name, why.data ? why.data : "is no sample");
    return !fault;
}

bool group_still_runs(struct exporter *x, const struct target_group *g)
{
    const struct tensor *t = g->first->tensor;
    const struct request *q =
        t->request ? requests_find(&x->requests, t->request, t->n_request) : NULL;
    bool runs = q && reader_run(x->reader)->state == READER_RUNNING &&
                (q->state == REQUEST_RUNNING || q->state == REQUEST_PREEMPTED);
    if (runs)
        group_leave_out(x, g, SAMPLE_RUNS, "it still runs,",
                        "and a dataset keeps what it has: a call after its end takes it");
    return runs;
}
