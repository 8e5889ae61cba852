/* SPDX-License-Identifier: Apache-2.0 */
/* --loss-mask of an export, of however many runs. A program of one thread. */
#pragma once

#include "read/mask.h"
#include "storage/text.h"

/* The masks, and the ids of the runs' requests, each with a NUL after it. */
struct export_masks {
    struct masks masks;
    struct text ids;
    size_t n_ids;
};

/* Before anything is written: finds a run's requests in the file. Return: 0 or -errno with a sentence in @err. */
int export_masks_match(struct err *err, struct export_masks *masks,
                       const struct requests *requests);

/* After the last run: warns once of ids that no run has. */
void export_masks_complain(const struct export_masks *masks);

/* Accepts a zeroed struct. */
void export_masks_deinit(struct export_masks *masks);
