/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/eager/kernel.h"

#include "preload/base/driver.h"
#include "preload/base/session.h"

bool eager_launch_kernel(const struct eager_launch *l, uint32_t site, struct action_kernel *k)
{
    __typeof__(cuLaunchKernel) *launch =
        l->stream.per_thread ? driver_table.cuLaunchKernel_ptsz : driver_table.cuLaunchKernel;
    void *params[] = { &k->param };
    CUresult r =
        launch(k->function, k->blocks, 1, 1, k->threads, 1, 1, 0, l->stream.handle, params, NULL);
    if (r != CUDA_SUCCESS)
        session_problem(site, PROBLEM_COPY_FAILED, "the driver refused our %s kernel: error %d",
                        action_of(site)->name, (int)r);
    return r == CUDA_SUCCESS;
}
