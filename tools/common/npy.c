/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/npy.h"

#include <dmi/dtype.h>

#include <inttypes.h>
#include <string.h>

const char *npy_type(uint32_t dtype)
{
    const struct dmi_dtype_info *info = dmi_dtype_info(dtype);
    return info->npy ? info->npy : info->n_bytes == 2 ? "<u2" : "|u1";
}

void npy_header(struct text *to, uint32_t dtype, const uint64_t *dims, uint32_t n_dims)
{
    text_add(to, "\x93NUMPY\x01\x00\x00\x00", 10);
    text_printf(to, "{'descr': '%s', 'fortran_order': False, 'shape': (", npy_type(dtype));
    for (uint32_t d = 0; d < n_dims; d++)
        text_printf(to, d && n_dims > 1 ? ", %" PRIu64 : "%" PRIu64, dims[d]);
    text_printf(to, n_dims == 1 ? ",), }" : "), }");
    while ((to->n + 1) % 64)
        text_add(to, " ", 1);
    text_add(to, "\n", 1);
    uint16_t n_header = (uint16_t)(to->n - 10);
    if (!to->failed)
        memcpy(to->data + 8, &n_header, sizeof n_header);
}
