/* SPDX-License-Identifier: Apache-2.0 */
/* Without libelf. */
#include "tools/sites/device_code.h"

#include <errno.h>

int device_code_read(struct err *err, const void *data, size_t n,
                     const struct device_code_sink *sink)
{
    (void)data, (void)n, (void)sink;
    return err_set(err, -ENOTSUP, "built without libelf, which reads machine code");
}
