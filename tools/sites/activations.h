/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reference activations: a safetensors file of REQUEST/SITE.LAYER, a row a token (tests/reference/README.md). One thread.
 *
 * A row is a token of a request. Rows that hold the same everywhere (requests that begin alike) are one row, by the
 * number of the first of them.
 */
#pragma once

#include "core/err.h"
#include "read/safetensors.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define REF_NO_LAYER (-1)

struct ref_site {
    char *name;
    uint32_t width;
    int n_layers; /* highest and one; 0: it has no layer */
    bool whole;   /* integers */
};

struct ref_request {
    char *name;
    uint32_t n_rows;
    uint32_t first_row; /* number of its first row among all */
};

struct ref_tensor {
    uint32_t site, request;
    int layer; /* or REF_NO_LAYER */
    uint32_t n_rows, width;
    float *values; /* [n_rows][width] */
};

struct activations {
    struct ref_site *sites;
    size_t n_sites, room_sites;
    struct ref_request *requests;
    size_t n_requests, room_requests;
    struct ref_tensor *tensors; /* by site, layer, request */
    size_t n_tensors, room_tensors;
    uint32_t n_rows;
    uint32_t *same_as; /* [n_rows]: the first row that holds the same */
};

/* Return: 0 or an error in @err. */
int activations_open(struct err *err, const char *path, struct activations *out);
/* Accepts a zeroed struct. */
void activations_deinit(struct activations *ref);

/* The tensor that holds a row. Return: NULL where the reference has none, or begins with NaN. @layer: or REF_NO_LAYER */
const struct ref_tensor *activations_tensor(const struct activations *ref, uint32_t site, int layer,
                                            uint32_t row);

/* Values of a row. Return: NULL where the reference has none, or begins with NaN. @layer: or REF_NO_LAYER */
const float *activations_row(const struct activations *ref, uint32_t site, int layer, uint32_t row);

/* The request that @row belongs to; its token there is row - first_row. */
const struct ref_request *activations_request(const struct activations *ref, uint32_t row);
