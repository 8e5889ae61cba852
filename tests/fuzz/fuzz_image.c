/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as what a module is loaded from: whatever is said of a kernel's parameters can be. */
#include "preload/image/image.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void look_at(void *ctx, const char *name, size_t n_name, const struct param_place *at,
                    uint32_t n)
{
    unsigned *count = ctx;
    uint32_t end = 0;
    require(n_name > 0 && !memchr(name, 0, n_name));
    require(n <= LAYOUT_MAX_PARAMS);
    for (uint32_t i = 0; i < n; i++) {
        require(at[i].offset >= end && at[i].offset + at[i].size <= LAYOUT_MAX_BYTES);
        end = at[i].offset + at[i].size;
    }
    ++*count;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    unsigned any = 0, one = 0;
    struct layout_sink all = { look_at, &any }, of_80 = { look_at, &one };
    image_read(data, n, 0, &all);
    image_read(data, n, 80, &of_80);
    require(one <= any);
    return 0;
}
