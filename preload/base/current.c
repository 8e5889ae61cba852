/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/base/current.h"

#include "preload/base/driver.h"

#include <stddef.h>

CUcontext current_context(void)
{
    CUcontext handle = NULL;
    return driver_table.cuCtxGetCurrent(&handle) == CUDA_SUCCESS ? handle : NULL;
}

bool current_push(CUcontext handle)
{
    return driver_table.cuCtxPushCurrent_v2 && driver_table.cuCtxPopCurrent_v2 &&
           driver_table.cuCtxPushCurrent_v2(handle) == CUDA_SUCCESS;
}

void current_pop(void)
{
    CUcontext popped;
    driver_table.cuCtxPopCurrent_v2(&popped);
}

struct current_visit current_visit(CUcontext handle)
{
    return (struct current_visit){ handle && !current_context() && current_push(handle) };
}

void current_leave(const struct current_visit *visit)
{
    if (visit->pushed)
        current_pop();
}
