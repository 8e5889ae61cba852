/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/context/assembly.h"

#include "core/atomic.h"

#include <stdlib.h>

struct assembly *assembly_new(uint64_t n_bytes)
{
    struct assembly *a = calloc(1, sizeof *a);
    unsigned char *data = malloc(n_bytes);
    if (!a || !data) {
        free(a);
        free(data);
        return NULL;
    }
    *a = (struct assembly){ .refs = 1, .n_bytes = n_bytes, .data = data };
    return a;
}

void assembly_hold(struct assembly *a)
{
    atomic_add_relaxed(&a->refs, 1);
}

void assembly_release(struct assembly *a)
{
    /* whoever is last sees what the others did with it */
    if (atomic_sub_acq_rel(&a->refs, 1) != 1)
        return;
    free(a->data);
    free(a);
}

bool assembly_settle(struct assembly *a)
{
    return !atomic_exchange_acq_rel(&a->settled, true);
}
