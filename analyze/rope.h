/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rotary embeddings: rows of heads are turned by angles that grow with the position. Angles are computed as engines do: frequencies and
 * their products with a position are rounded to f32. A struct rope is one thread's.
 * Sources: RoFormer (arXiv 2104.09864); linear: arXiv 2306.15595; YaRN: arXiv 2309.00071; llama3: the rope_scaling of Llama 3.1's
 * config.json.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum rope_scaling {
    ROPE_PLAIN = 0,
    ROPE_LINEAR, /* positions are divided by the factor */
    ROPE_LLAMA3, /* so are low frequencies, high ones are not, and between them it changes smoothly */
    ROPE_YARN,   /* likewise, by dimension; and the rows are multiplied with @amplitude */
};

/* What a model's config says of it. */
struct rope_params {
    bool known; /* false: the config says no rope, and nothing is turned */
    double theta;
    uint32_t n_dims; /* of a head, that are turned: the first ones; even */
    bool pairs;      /* dimensions 2i and 2i + 1 turn together; else i and i + n_dims / 2 */
    enum rope_scaling scaling;
    double factor, original; /* the second: positions that the model was trained for at first */
    double low, high;        /* llama3: low_freq_factor, high_freq_factor */
    double fast, slow;       /* yarn: beta_fast, beta_slow */
    double amplitude;        /* yarn: of cos and sin; others 1 */
    bool whole; /* yarn: the first and last dimension of the change are rounded outwards */
};

#define ROPE_MOST_DIMS 1024

/* Frequencies of n_dims / 2 pairs, in radians a position. */
void rope_frequencies(const struct rope_params *params, float *out);

/**
 * rope_turn() - turn the heads of one row
 * @frequencies: of rope_frequencies(); @row: n_heads * dim floats
 */
void rope_turn(const struct rope_params *params, const float *frequencies, int64_t position,
               size_t n_heads, size_t dim, float *row);
