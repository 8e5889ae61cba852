/* SPDX-License-Identifier: Apache-2.0 */
/* For tests whose capture contexts are their own: nothing is created on a device. */
#include "preload/context/device.h"

int device_init(struct err *err, struct context *c)
{
    (void)err, (void)c;
    return -1;
}

void device_give_back(struct context *c)
{
    (void)c;
}

void device_forget(struct context *c)
{
    (void)c;
}

uint64_t device_free_bytes(void)
{
    return UINT64_MAX;
}
