/* SPDX-License-Identifier: Apache-2.0 */
#include "storage/writer/identity.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

int identity_uuid(uint8_t uuid[16])
{
    size_t n = 0;
    while (n < 16) {
        ssize_t r = getrandom(uuid + n, 16 - n, 0);
        if (r < 0 && errno != EINTR)
            return -errno;
        n += r > 0 ? (size_t)r : 0;
    }
    uuid[6] = (uint8_t)((uuid[6] & 0x0f) | 0x40); /* RFC 4122, version 4 */
    uuid[8] = (uint8_t)((uuid[8] & 0x3f) | 0x80);
    return 0;
}

void identity_host(char *out, size_t n)
{
    if (gethostname(out, n))
        snprintf(out, n, "localhost");
    out[n - 1] = 0;
    for (char *c = out; *c; c++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.", *c))
            *c = '_';
    if (!*out || *out == '.')
        *out = 'h';
}
