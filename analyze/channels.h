/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What each channel of a tensor holds over its rows: mean, spread, largest magnitude; and which channels stand out.
 * A channel is an index in a row. Rows are added one after the other, each channel for itself, so neither parts of rows,
 * rows that come together nor instruction sets change a bit. Sums are of what values are above the channel's first one, so that
 * a mean far from zero costs no digits. 32 bytes a channel. One thread at a time.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct tile_kernel;

struct channels {
    size_t n;        /* channels */
    uint64_t n_rows; /* that began */
    /* By channel, of its finite values: the first, sums of value - shift and of its square, the largest magnitude. */
    double *shift, *sum, *squares;
    double *peak;    /* -1: it has none yet */
    uint64_t *n_bad; /* values that are not finite; NULL: none is */
};

/* Return: 0 or -ENOMEM. */
int channels_init(struct channels *channels, size_t n);
/* Accepts a zeroed struct. */
void channels_deinit(struct channels *channels);

/* Rows begin: each of their channels is added once. */
void channels_begin_rows(struct channels *channels, size_t n_rows);

/**
 * channels_add() - some channels of rows that began
 * @values: finite, of the channels @first to before @first + @n: @n_rows rows, @stride doubles apart
 */
void channels_add(const struct tile_kernel *kernel, struct channels *channels, size_t first,
                  const double *values, size_t stride, size_t n_rows, size_t n);

/* As channels_add(), of one row, whose values may be NaN or infinite: those are counted only. Return: 0 or -ENOMEM. */
int channels_add_bad(struct channels *channels, size_t first, const double *values, size_t n);

/* Finite values of a channel. */
uint64_t channels_count(const struct channels *channels, size_t channel);
/* Mean; standard deviation, divided by n; root mean square. NaN where the channel has no finite value. */
double channels_mean(const struct channels *channels, size_t channel);
double channels_sd(const struct channels *channels, size_t channel);
double channels_rms(const struct channels *channels, size_t channel);

/* The middle of a list, and a spread that outliers do not move. */
struct robust {
    double median;
    double sd; /* 1.4826 * median of |value - median|: that of a normal distribution */
};

/* Sorts @values, which are finite, and uses @scratch of as many. NaN of none. */
struct robust robust_of(double *values, double *scratch, size_t n);

#define OUTLIER_SD 6.0 /* robust standard deviations */

/**
 * channels_scores() - how far each channel's root mean square lies above the median, in robust standard deviations
 * @scores: gets one a channel; NaN for a channel without finite values, and for all where the spread is 0
 * @scratch: room for 2 * n
 */
void channels_scores(const struct channels *channels, double *scores, double *scratch);
