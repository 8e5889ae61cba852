/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/base/readable.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* Linux 5.14 */
#endif

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define PROBES 128 /* pages that one call reads a byte of */

/* Reads a byte of each page, as the kernel does it for another process: on any Linux, for about a sixth of what a copy takes. */
static int probe(uint64_t at, uint64_t end, uint64_t page)
{
    struct iovec bytes[PROBES];
    char sink[PROBES];
    while (at < end) {
        size_t n = 0;
        for (; n < PROBES && at < end; at = (at & -page) + page)
            bytes[n++] = (struct iovec){ (void *)(uintptr_t)at, 1 };
        struct iovec to = { sink, n };
        ssize_t got = process_vm_readv(getpid(), &to, 1, bytes, n, 0);
        if (got != (ssize_t)n)
            return got < 0 ? -errno : -EFAULT;
    }
    return 0;
}

int readable_check(uint64_t address, uint64_t n_bytes)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), end = address + n_bytes;
    uint64_t first = address & -page;
    /* a fifth of what the probes take; where it fails they know why */
    if (!madvise((void *)(uintptr_t)first, end - first, MADV_POPULATE_READ))
        return 0;
    return probe(address, end, page);
}

/* Do mappings that may be written cover all of it? They are listed in their order. */
static int mapped_to_write(uint64_t at, uint64_t end)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512];
    if (!maps)
        return -errno;
    while (at < end && fgets(line, sizeof line, maps)) {
        uint64_t first, past;
        char read, write;
        if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %c%c", &first, &past, &read, &write) == 4 &&
            first <= at && at < past && write == 'w')
            at = past;
    }
    fclose(maps);
    return at < end ? -EFAULT : 0;
}

int writable_check(uint64_t address, uint64_t n_bytes)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), end = address + n_bytes;
    uint64_t first = address & -page;
    if (!madvise((void *)(uintptr_t)first, end - first, MADV_POPULATE_WRITE))
        return 0;
    /* older kernels do not know the advice; it knows no mappings of a device's */
    return errno == EINVAL || errno == ENOMEM ? mapped_to_write(address, end) : -EFAULT;
}
