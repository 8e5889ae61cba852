/* SPDX-License-Identifier: Apache-2.0 */
/* nvtx_module.c - a library of an application that has NVTX of its own: it attaches by itself. */
#include <nvtx3/nvToolsExt.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT int module_push(const char *text);
EXPORT int module_pop(void);

EXPORT int module_push(const char *text)
{
    return nvtxRangePushA(text);
}

EXPORT int module_pop(void)
{
    return nvtxRangePop();
}
