/* SPDX-License-Identifier: Apache-2.0 */
/* The parameter of the probe's kernels. */
#ifndef TESTS_PRELOAD_PROBE_PROBE_H
#define TESTS_PRELOAD_PROBE_PROBE_H

#include <dmi/ring.h>

struct probe {
    struct dmi_gather gather;
    dmi_u64 rows;         /* eagerly: the list of rows, 0: the first ones */
    dmi_u64 state, lists; /* in a graph */
    dmi_u32 number;
    dmi_u32 n_rows;
};

#endif
