/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/eager/kernel.h"

#include "preload/action/action.h"
#include "preload/base/driver.h"
#include "preload/session/session.h"

static __thread __attribute__((tls_model("initial-exec"))) uint32_t own;

uint32_t eager_take_own(void)
{
    uint32_t n = own;
    own = 0;
    return n;
}

static CUresult launch_ours(const struct eager_launch *l, struct action_kernel *k)
{
    __typeof__(cuLaunchKernel) *launch =
        l->stream.per_thread ? driver_table.cuLaunchKernel_ptsz : driver_table.cuLaunchKernel;
    void *params[] = { k->param };
    own++;
    return launch(k->function, k->blocks, 1, 1, k->threads, 1, 1, 0, l->stream.handle, params,
                  NULL);
}

bool eager_launch_rows(const struct eager_launch *l, const struct admission_launch *admitted,
                       const struct admission *item, uint32_t first_row, uint32_t n_rows)
{
    struct action_kernel k;
    struct action_launch launch = { .context = admitted->context,
                                    .operand = item->operand,
                                    .number = admitted->number,
                                    .occurrence = item->occurrence,
                                    .first_row = first_row,
                                    .n_rows = n_rows,
                                    .rows = admission_rows_address(admitted->context, item),
                                    .at = item->at,
                                    .slot = item->slot,
                                    .payload = item->payload };
    action_eager(&launch, &k);
    if (l->on_host) {
        k.host(k.param);
        return true;
    }
    CUresult r = launch_ours(l, &k);
    if (r != CUDA_SUCCESS)
        session_problem(item->site, PROBLEM_COPY_FAILED,
                        "the driver refused our %s kernel: error %d", action_word(item->site),
                        (int)r);
    return r == CUDA_SUCCESS;
}
