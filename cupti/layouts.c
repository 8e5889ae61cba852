/* SPDX-License-Identifier: Apache-2.0 */
#include "cupti/layouts.h"

#include <stddef.h>

struct record_layout {
    uint32_t kind, first, n_bytes;
};

/* From version @first on, up to the next row of the kind. */
static const struct record_layout layouts[] = {
    { LAYOUTS_KERNEL, 18, 200 },     /* CUpti_ActivityKernel8 */
    { LAYOUTS_KERNEL, 19, 208 },     /* 9: 12.0 */
    { LAYOUTS_KERNEL, 130000, 216 }, /* 10 */
    { LAYOUTS_KERNEL, 130100, 224 }, /* 11 */
    { LAYOUTS_KERNEL, 130300, 232 }, /* 12 */
    { LAYOUTS_KERNEL, 130500, 248 }, /* 13 */
    { LAYOUTS_COPY, 18, 88 },        /* CUpti_ActivityMemcpy5 */
    { LAYOUTS_COPY, 25, 96 },        /* 6: 12.8 */
    { LAYOUTS_COPY, 130500, 112 },   /* 7 */
    { LAYOUTS_SET, 18, 88 },         /* CUpti_ActivityMemset4 */
    { LAYOUTS_SET, 130500, 104 },    /* 5 */
    { LAYOUTS_COPY_PEER, 18, 96 },   /* CUpti_ActivityMemcpyPtoP4 */
};

uint32_t layouts_bytes(uint32_t version, uint32_t kind)
{
    uint32_t n_bytes = 0;
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts && version <= LAYOUTS_LAST; i++)
        if (layouts[i].kind == kind && layouts[i].first <= version)
            n_bytes = layouts[i].n_bytes;
    return n_bytes;
}

uint32_t layouts_prefix(uint32_t kind)
{
    switch (kind) {
    case LAYOUTS_KERNEL: return 160;
    case LAYOUTS_COPY:
    case LAYOUTS_SET: return 76;
    case LAYOUTS_COPY_PEER: return 84;
    default: return 0;
    }
}
