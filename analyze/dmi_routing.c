/* SPDX-License-Identifier: Apache-2.0 */
/* The C ABI of <dmi/analyze_stats.h>: routing. */
#include <dmi/analyze_stats.h>

#include "analyze/routing.h"
#include "core/abi.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

struct dmi_routing {
    struct routing routing;
};

int dmi_routing_open(struct dmi_read *run, const struct dmi_routing_options *options,
                     struct dmi_routing **out, char *why, uint64_t n_why)
{
    struct err err = { 0 };
    struct dmi_routing_options ours = { 0 };
    struct dmi_routing *a = calloc(1, sizeof *a);
    int r = a ? 0 : err_set_errno(&err, ENOMEM, "cannot read routing");
    if (!r && options && abi_take_in(&ours, sizeof ours, options))
        r = err_set(&err, -EINVAL, "the struct's size was not set");
    if (!r)
        r = routing_build(&err, run, &ours, &a->routing);
    if (r && why && n_why)
        snprintf(why, n_why, "%s", err.msg);
    if (r)
        free(a);
    *out = r ? NULL : a;
    return r;
}

void dmi_routing_close(struct dmi_routing *a)
{
    if (!a)
        return;
    routing_deinit(&a->routing);
    free(a);
}

int dmi_routing_layer(const struct dmi_routing *a, uint64_t index, struct dmi_routing_layer *out)
{
    return index < a->routing.n_layers ? abi_hand_out(out, &a->routing.layers[index], sizeof *out)
                                       : -ENOENT;
}
