/* SPDX-License-Identifier: Apache-2.0 */
/* An eager launch of the application's, and kernels of ours on its stream. Thread: the launching thread, entered. */
#pragma once

#include "preload/base/stream.h"
#include "preload/capture/admission.h"

#include <dmi/dmi.h>

#include <stdbool.h>
#include <stdint.h>

/* The application's call, borrowed while it lasts. */
struct eager_launch {
    CUfunction function;
    uint32_t grid[3], block[3];
    uint32_t shared_bytes;
    struct stream stream;
    void **kernel_params, **extra;
    const struct dmi_tap *tap; /* NULL: a kernel; else none of the parameters are there */
    bool on_host;              /* a tap of host memory, of no stream */
    const struct dmi_moment
        *moment; /* of a tap: where it belongs, taken before; NULL: where the thread stands now */
    bool lets_others_start; /* an event of its attributes comes before it ends */
};

/**
 * eager_launch_rows() - launch the action of an item that has a slot, for @n_rows of the rows that it keeps, from number
 * @first_row on
 * Return: false where the driver refuses it, which is reported.
 */
bool eager_launch_rows(const struct eager_launch *launch, const struct admission_launch *admitted,
                       const struct admission *item, uint32_t first_row, uint32_t n_rows);

/* How many kernels of ours the calling thread has launched since it asked last. */
uint32_t eager_take_own(void);
