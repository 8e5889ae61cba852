/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/dump/dump.h"

#include "tools/common/select.h"

#include <errno.h>

int dump_open(struct err *err, const struct options *o, const char *path, struct reader **out)
{
    int r = reader_open_index(err, path, out);
    if (!r && o->by_rank && !reader_only_ranks(*out, o->ranks))
        r = err_set(err, -ENOENT, "%s: no run is of that rank (dmi-dump list)", path);
    if (!r && !o->command->by_itself)
        r = select_records(err, *out, o->command->selects ? &o->select : NULL, false);
    return r;
}
