/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/capture/params.h"

#include "preload/base/cuda_abi.h"

#include <errno.h>
#include <string.h>

void params_init(struct params *params, const struct params_layout *layout, void **kernel_params,
                 void **extra)
{
    *params = (struct params){ .layout = layout, .pointers = kernel_params };
    if (!extra)
        return;
    for (size_t i = 0; i < 8 && extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
        if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER)
            params->packed = extra[i + 1];
        else if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE && extra[i + 1])
            params->n_packed = *(const size_t *)extra[i + 1];
        else
            return;
    }
}

static int copy_within(const unsigned char *from, size_t have, size_t at, void *dst, size_t n)
{
    if (at > have || n > have - at)
        return -ENOENT;
    memcpy(dst, from + at, n);
    return 0;
}

/* The parameter that holds byte @offset of the packed buffer, -1: none */
static int param_at(const struct params_layout *layout, size_t offset)
{
    for (uint32_t i = 0; i < layout->n; i++)
        if (offset >= layout->at[i].offset && offset - layout->at[i].offset < layout->at[i].size)
            return (int)i;
    return -1;
}

int params_read(void *ctx, struct expr_ref ref, void *dst, size_t n)
{
    const struct params *p = ctx;
    if (ref.arg < 0 && p->packed)
        return copy_within(p->packed, p->n_packed, ref.offset, dst, n);
    if (!p->layout)
        return -ENOENT;
    size_t offset = ref.offset;
    int arg = ref.arg;
    if (arg < 0) {
        arg = param_at(p->layout, offset);
        if (arg < 0)
            return -ENOENT;
        offset -= p->layout->at[arg].offset;
    }
    if ((uint32_t)arg >= p->layout->n)
        return -ENOENT;
    size_t size = p->layout->at[arg].size;
    if (offset > size || n > size - offset)
        return -ENOENT;
    if (p->packed)
        return copy_within(p->packed, p->n_packed, p->layout->at[arg].offset + offset, dst, n);
    if (!p->pointers || !p->pointers[arg])
        return -ENOENT;
    memcpy(dst, (const unsigned char *)p->pointers[arg] + offset, n);
    return 0;
}
