/* SPDX-License-Identifier: Apache-2.0 */
/* Without libelf. */
#include "cupti/cubin.h"

#include <errno.h>

int cubin_read(struct err *err, const void *data, size_t n, const struct cubin_sink *sink)
{
    (void)data, (void)n, (void)sink;
    return err_set(err, -ENOTSUP, "built without libelf, which reads machine code");
}
