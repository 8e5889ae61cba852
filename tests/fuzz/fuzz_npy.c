/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as an npy file: what is taken lies inside of it, all elements that its head says. */
#include "tools/common/npy.h"

#include <dmi/dtype.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void require(bool holds)
{
    if (!holds)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    uint64_t dims[2] = { 0, 0 }, elements;
    uint32_t dtype, n_dims;
    size_t head;
    const char *why = npy_read((const char *)data, n, &dtype, dims, &n_dims, &head);
    if (why)
        return 0;
    require(n_dims == 1 || n_dims == 2);
    require(dtype > DMI_DTYPE_NONE && dtype < DMI_DTYPE_COUNT && head <= n);
    require(!__builtin_mul_overflow(dims[0], n_dims == 2 ? dims[1] : 1, &elements));
    require(elements <= (n - head) / dmi_dtype_bytes(dtype));
    return 0;
}
