/* SPDX-License-Identifier: Apache-2.0 */
/* A recording (<dmi/recording.h>), read whole and checked: kernels, launches, what memory held. One thread. */
#pragma once

#include "core/err.h"

#include <dmi/recording.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rec_kernel {
    char *name;
    uint32_t n_params; /* DMI_RECORDING_NO_LAYOUT: nobody knows them */
    const struct dmi_recording_param *params;
};

/* Bytes that memory held from @time on, until another run. */
struct rec_run {
    uint64_t address, n_bytes;
    uint64_t time; /* REC_BEFORE() or REC_AFTER() of a launch */
    const uint8_t *data;
};

#define REC_BEFORE(launch) (2 * (uint64_t)(launch))
#define REC_AFTER(launch)  (2 * (uint64_t)(launch) + 1)

struct rec_launch {
    struct dmi_recording_launch head;
    const struct dmi_recording_pointer *pointers;
    const uint8_t *params;
    size_t first_run, n_runs; /* what it wrote */
};

struct recording {
    void *map;
    size_t n_map;
    struct rec_kernel *kernels;
    size_t n_kernels, room_kernels;
    struct rec_launch *launches; /* by sequence */
    size_t n_launches, room_launches;
    struct rec_run *runs; /* by time */
    size_t n_runs, room_runs;
    void **owned; /* decompressed chunks */
    size_t n_owned, room_owned;
    char **unseen;
    size_t n_unseen, room_unseen;
    uint64_t n_asked; /* bytes of memory that it has asked for, and will */
    bool ended;       /* else the program was killed: what was written until then is there */
    struct dmi_recording_end end;
};

/* Does the file at @path begin as a recording does? */
bool recording_is(const char *path);

/* Return: 0 or an error in @err. A recording that was cut off is taken up to there. */
int recording_open(struct err *err, const char *path, struct recording *out);
/* Accepts a zeroed struct. */
void recording_deinit(struct recording *rec);

/* The kernel's name. */
const char *recording_name(const struct recording *rec, const struct rec_launch *launch);
