/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where in what launches wrote the beginnings of reference rows lie: 16 values, found by the largest of them. One thread.
 */
#ifndef TOOLS_SITES_PROBE_H
#define TOOLS_SITES_PROBE_H

#include "tools/sites/memory.h"
#include "tools/sites/recording.h"
#include "tools/sites/activations.h"

#include <stdbool.h>

#define PROBE_VALUES 16u

/* A launch wrote what looks like the beginning of a row. */
struct hit {
    uint32_t launch;
    uint32_t tensor; /* index in the activations' tensors */
    uint32_t row;    /* among all, the first that holds the same */
    uint32_t dtype;
    uint64_t address;
    float error; /* of the beginning: norm over norm */
};

struct hits {
    struct hit *at; /* by launch, then address */
    size_t n, room;
};

/* What is looked for: all sites, or one, whose values are multiplied. */
struct probe {
    const struct recording *rec;
    const struct memory *memory;
    const struct activations *ref;
    int site;    /* -1: all */
    float scale; /* of what memory holds, over the reference */
};

/* Adds to @out. Return: 0 or -ENOMEM. */
int probe_all(const struct probe *probe, struct hits *out);

/**
 * probe_scale() - is a row there in another scale?
 * Looks through what the launches in [first, end) wrote for the beginning of @row times anything.
 * Return: the scale, 0 where it is not there.
 */
float probe_scale(const struct probe *probe, uint32_t first, uint32_t end, const float *row);

/* Of 16 values (or @n of them, where the row has fewer). */
float probe_error(const float *values, const float *row, uint32_t n, float scale);

#endif
