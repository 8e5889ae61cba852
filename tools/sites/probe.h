/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where in what launches wrote the beginnings of reference rows lie: 16 values, found by the largest of them. One thread.
 */
#pragma once

#include "tools/sites/activations.h"
#include "tools/sites/index.h"
#include "tools/sites/memory.h"
#include "tools/sites/recording.h"
#include "tools/sites/view.h"

#include <stdbool.h>

#define PROBE_VALUES 16u
#define PROBE_FEWEST 8u /* values of a row that tell it from others */
#define PROBE_ERROR                                                                                \
    0.06f /* of a beginning that is looked at further, without its type's rounding */

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
    int site;       /* -1: all */
    float scale;    /* of what memory holds, over the reference */
    uint32_t types; /* VIEW_TYPE() of each that memory is read as */
    float usual;    /* no error of this engine's arithmetic is beyond; 0: not known yet */
};

/**
 * probe_scale() - is a row there in another scale?
 * Looks through what the launches in [first, end) wrote for the beginning of @row times anything.
 * Return: the scale, 0 where it is not there.
 */
float probe_scale(const struct probe *probe, uint32_t first, uint32_t end, const float *row);

/* May element number @i of @view be the largest value of @pattern: are there enough around it, and the second as well? */
static inline bool probe_may_be(const struct memory_view *view, size_t i,
                                const struct index_pattern *pattern, float limit)
{
    if (i < pattern->anchor || i - pattern->anchor + pattern->n > view->n)
        return false;
    float off = view->values[i - pattern->anchor + pattern->second] - pattern->next;
    float most = 4 * limit * pattern->largest;
    return off * off <= most * most;
}

/**
 * probe_pattern() - are the values around element number @i of @view, which may be the largest, those of @pattern?
 * @limit: error that is still accepted, norm over norm
 * Adds to @out, as of @launch. Return: 0 or -ENOMEM.
 */
int probe_pattern(const struct memory_view *view, size_t i, const struct index_pattern *pattern,
                  float scale, float limit, uint32_t launch, struct hits *out);

/* By launch, then address. */
void probe_sort(struct hits *hits);

/* Of @n values, which are sorted; at least one. */
float probe_median(float *values, size_t n);

/* The error that those of this engine's arithmetic are not beyond; what is beyond are likenesses. */
float probe_usual_error(const struct hits *hits);
