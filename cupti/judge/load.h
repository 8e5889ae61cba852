/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a step has to compute, and which kind of load that is: loads of one kind take about the same time. Pure: any thread.
 */
#pragma once

#include <stdint.h>

/* The batch of a step, as the engine said it. Accepts being zeroed: the engine said nothing. */
struct load {
    uint32_t rows;    /* padding included */
    uint64_t context; /* tokens that its requests have by its end, cached ones included */
    /* Tokens of prompts that the step computes. Tokens that are computed again after a preemption count; cached tokens do not. */
    uint64_t prefill;
    uint64_t decode; /* other tokens that it computes, drafts included */
    uint64_t drafts;
};

/* Which phases a step mixes: a sum of these. */
enum load_phase {
    LOAD_PREFILL = 1,
    LOAD_DECODE = 2,
    LOAD_DRAFTS = 4,
};

#define LOAD_PHASES  8   /* such sums are below this */
#define LOAD_BUCKETS 248 /* numbers of load_bucket() are below this */

/* A kind of load: a number for each of phases, rows, context and new tokens. */
struct load_kind {
    uint8_t phase, bucket, context, fresh;
};

/* Return: the sum of enum load_phase. */
unsigned load_phase(const struct load *load);

/* Return: a number that rises with @rows: exact up to 16 rows, then eight an octave. Tiles and waves of a device end where it rises. */
unsigned load_bucket(uint32_t rows);

/* The kind of a load. Contexts of one kind differ by a ratio of at most 1.5, and so do numbers of new tokens. */
struct load_kind load_kind(const struct load *load);
