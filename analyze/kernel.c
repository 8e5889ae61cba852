/* SPDX-License-Identifier: Apache-2.0 */
#define VECTOR      4
#define KERNEL      kernel_portable
#define KERNEL_NAME "portable"
#include "analyze/kernel_body.h"

#include "storage/codec/cpu.h"

const struct kernel *kernel_best(void)
{
#ifdef __x86_64__
    if (has_avx512())
        return &kernel_avx512;
    if (has_avx2())
        return &kernel_avx2;
#endif
    return &kernel_portable;
}
