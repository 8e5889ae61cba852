/* SPDX-License-Identifier: Apache-2.0 */
/* A recording, a reference, and all that was found of the one in the other. One thread. */
#pragma once

#include "core/err.h"
#include "tools/sites/entry.h"

struct finding {
    struct recording rec;
    struct memory memory;
    struct activations ref;
    struct probe probe;
    struct hits hits;
    struct forwards forwards;
    struct kinds kinds;
    struct sightings sightings;
    struct entries entries;
};

/* Reads both. Return: 0 or an error in @err; finding_deinit() follows in any case. */
int finding_open(struct err *err, const char *recording, const char *reference,
                 struct finding *out);

/* Finds forwards, sightings and entries. Return: 0 or an error in @err. */
int finding_find(struct err *err, struct finding *finding);

/* Accepts a zeroed struct. */
void finding_deinit(struct finding *finding);

/* What entries and reports are about; borrowed from @finding. */
struct scene finding_scene(const struct finding *finding);
