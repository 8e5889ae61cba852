/* SPDX-License-Identifier: Apache-2.0 */
#include "core/unnamed.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

int unnamed_open(void)
{
    const char *folder = getenv("TMPDIR");
    int fd = open(folder && *folder ? folder : "/tmp", O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
    return fd < 0 ? -errno : fd;
}
