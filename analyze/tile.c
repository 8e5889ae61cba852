/* SPDX-License-Identifier: Apache-2.0 */
#define VECTOR      2
#define KERNEL      tile_portable
#define KERNEL_NAME "portable"
#include "analyze/tile_body.h"

#include "storage/codec/cpu.h"

const struct tile_kernel *tile_best(void)
{
#ifdef __x86_64__
    if (has_avx512())
        return &tile_avx512;
    if (has_avx2())
        return &tile_avx2;
#endif
    return &tile_portable;
}
