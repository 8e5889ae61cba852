/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/dump/dump.h"

#include "read/missing.h"
#include "tools/common/opened.h"
#include "tools/common/select.h"

int dump_open(struct err *err, struct dump_options *o, const char *path, struct reader **out)
{
    int r = opened_index(err, path, out);
    if (!r && o->by_rank)
        r = missing_ranks(err, *out, o->ranks);
    if (!r && !o->command->by_itself)
        r = select_records(err, *out, o->command->selects ? &o->select : NULL, false);
    struct selection wanted = o->select;
    if (o->n_runs > 1)
        wanted.requests =
            (struct selection_names){ 0 }; /* one of the runs has each: export_met.h */
    if (!r && !o->command->aliases && !o->command->by_itself)
        r = select_check(err, *out, &wanted);
    o->select.n_of_model = wanted.n_of_model;
    return r;
}
