/* SPDX-License-Identifier: Apache-2.0 */
/* The C ABI of <dmi/read.h>: which tensors are samples. */
#include <dmi/read.h>

#include "core/cleanup.h"
#include "read/handle.h"
#include "read/sample.h"

#include <errno.h>
#include <stdio.h>

_Static_assert(SAMPLE_N_FAULTS == DMI_READ_SAMPLE_RUNS + 1, "faults are numbered alike");

int dmi_read_sample(struct dmi_read *run, uint64_t tensor, char *why, uint64_t n_why)
{
    _cleanup_(text_deinit) struct text text = { 0 };
    if (run->failed)
        return -EBADF;
    if (tensor >= run->view.tensors.n)
        return handle_fail(run, -ENOENT, "no such tensor");
    int fault =
        (int)sample_fault(&run->view.tensors.all[tensor], &run->view.requests, &run->select, &text);
    if (text.failed)
        return handle_fail(run, -ENOMEM, "no memory for a sentence");
    if (why && n_why)
        snprintf(why, n_why, "%s", text.data ? text.data : "");
    return fault;
}
