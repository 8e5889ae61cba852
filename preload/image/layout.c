/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/image/layout.h"

#include <stdlib.h>
#include <string.h>

void layout_add(struct layout_draft *draft, uint32_t i, uint64_t offset, uint64_t size)
{
    if (offset > LAYOUT_MAX_BYTES || size > LAYOUT_MAX_BYTES - offset)
        draft->bad = true;
    if (draft->bad || i >= LAYOUT_MAX_PARAMS)
        return;
    draft->bad = draft->known[i];
    draft->known[i] = true;
    draft->at[i] = (struct param_place){ (uint32_t)offset, (uint32_t)size };
    if (i >= draft->n)
        draft->n = i + 1;
}

bool layout_finish(const struct layout_draft *draft, uint64_t n_bytes)
{
    uint32_t end = 0;
    for (uint32_t i = 0; i < draft->n; i++) {
        if (!draft->known[i] || draft->at[i].offset < end)
            return false;
        end = draft->at[i].offset + draft->at[i].size;
    }
    return !draft->bad && end <= n_bytes;
}

struct params_layout *layout_new(const struct param_place *at, uint32_t n)
{
    struct params_layout *layout = malloc(sizeof *layout + n * sizeof *at);
    if (!layout)
        return NULL;
    layout->n = n;
    if (n)
        memcpy(layout->at, at, n * sizeof *at);
    return layout;
}
