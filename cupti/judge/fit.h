/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The greater of two planes through times over loads: a device waits for its memory, or for its products. Outliers do not move it: least
 * squares with Tukey's weights, of residuals that are ratios of the prediction. Pure: one thread.
 */
#pragma once

#include "cupti/judge/load.h"

#include <stdbool.h>
#include <stddef.h>

#define FIT_TERMS  7
#define FIT_PLANES 2

/* A load in few bytes. */
struct fit_load {
    float rows, context, prefill, decode, drafts;
};

/* Accepts being zeroed: then nothing is fitted. */
struct fit {
    double by[FIT_PLANES][FIT_TERMS];
    double least;     /* no prediction is below it; 0: nothing is fitted */
    double deviation; /* robust standard deviation of time / prediction - 1 */
};

/* The same load in few bytes. */
struct fit_load fit_load(const struct load *load);

/* Return: the time that the fit, which is fitted, predicts: finite and above 0. */
double fit_at(const struct fit *fit, const struct fit_load *load);

/**
 * fit_again() - fits to the times of @n loads
 * @fit: of before; changed
 * @times: one at least above 0, in any unit; 0: absent
 * @work: room for 2 n numbers
 * It takes 2 ms for 2,048 loads.
 */
void fit_again(struct fit *fit, const struct fit_load loads[], const float times[], size_t n,
               float work[]);

/**
 * fit_middle() - the median of numbers
 * @numbers: @n of them, finite; reordered
 * Return: the median, the upper one of two; 0 of none.
 */
float fit_middle(float numbers[], size_t n);

/* Return: the robust standard deviation from 0 of @n numbers, which become their distances from 0, reordered. */
double fit_deviation(float numbers[], size_t n);
