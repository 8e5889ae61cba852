/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as the text of an NVTX range: a name that fits, without control characters, and a layer that is none or one. */
#include "policy/range_name.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void require(bool holds)
{
    if (!holds)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char name[RANGE_NAME_MAX];
    size_t length = range_name_parse((const char *)data, n, name);
    require(length < RANGE_NAME_MAX && strlen(name) == length);
    for (size_t i = 0; i < length; i++)
        require((unsigned char)name[i] >= ' ');
    require(n || !length);
    int32_t layer = range_name_layer(name);
    require(layer >= -1 && (layer < 0 || strpbrk(name, "0123456789")));
    return 0;
}
