/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a file of loss masks: what is read is as read/mask.h says, and only asked positions are filled. */
#include "core/cleanup.h"
#include "read/mask.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void look_at(const struct mask *m)
{
    int64_t some[5] = { [4] = 7 };
    for (size_t i = 0; i < m->n_ones; i++)
        require(m->ones[i].first >= 0 && m->ones[i].end >= m->ones[i].first &&
                (!m->is_list || m->ones[i].end <= m->n_tokens));
    for (int64_t first = 0; first < 12; first += 4) {
        mask_fill(m, first, 4, some);
        for (int64_t p = 0; p < 4; p++) {
            bool wanted = false;
            for (size_t i = 0; i < m->n_ones; i++)
                wanted |= range_has(&m->ones[i], first + p);
            require(some[p] == wanted);
        }
        require(some[4] == 7);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    _cleanup_(closep) int fd = memfd_create("mask", MFD_CLOEXEC);
    _cleanup_(masks_deinit) struct masks masks = { 0 };
    struct err err = { 0 };
    char path[40];
    if (fd < 0 || write(fd, data, n) != (ssize_t)n)
        return 0;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (masks_read(&err, path, &masks)) {
        require(err.code < 0 && *err.msg && !masks.n);
        return 0;
    }
    for (size_t i = 0; i < masks.n; i++)
        look_at(&masks.all[i]);
    return 0;
}
