/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/context/launch_records.h"

#include "core/atomic.h"

#include <stdlib.h>

struct launch_records *launch_records_new(uint32_t n)
{
    struct launch_records *r = malloc(sizeof *r + n * sizeof r->all[0]);
    if (r)
        *r = (struct launch_records){ .refs = 1 };
    return r;
}

void launch_records_hold(struct launch_records *r, uint32_t n)
{
    atomic_add_relaxed(&r->refs, n);
}

void launch_records_release(struct launch_records *r)
{
    /* the last to let go sees what the others did with it */
    if (r && atomic_sub_acq_rel(&r->refs, 1) == 1)
        free(r);
}
