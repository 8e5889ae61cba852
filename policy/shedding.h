/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Load shedding: which requests of a step are kept, given what the spec says (policy/overload.h), how full the ring is, and
 * what the step's rows cost. It looks at nothing but its arguments and what it remembers of earlier ones, so the same
 * calls give the same answers: dmi-replay --policy asks it of runs that are over.
 *
 * A request that is not kept once is not kept again until it ends: one that is kept has all its rows. What may be taken has a
 * limit in each of several resources: the ring, whose room is known and whose rate is learned, and each budget, a bucket
 * of tokens. Requests are asked in the order in which the strategy prefers them, so what does not fit is shed from the end.
 *
 * One thread at a time.
 */
#pragma once

#include "policy/overload.h"

#include <stdbool.h>
#include <stdint.h>

struct shedding;

/* What is known when a step begins. */
struct shedding_pressure {
    uint64_t now_ns;     /* a clock that only rises */
    uint64_t ring_bytes; /* size of the ring, of several the fullest; 0: there is none yet */
    uint64_t ring_used;  /* bytes of it in flight */
    uint64_t drained;    /* bytes that left it so far, a running count */
};

/* A request's rows in a step. */
struct shedding_ask {
    const char *id;
    const char *tags; /* a JSON object, or NULL */
    uint32_t n_rows;
    bool is_prompt;        /* rows of the prompt: they come once */
    const uint64_t *costs; /* bytes: [0] of all sites, [1 + i] of the sites of budget i */
};

enum shedding_verdict {
    SHEDDING_KEEP = 0,
    SHEDDING_REFUSED = 1, /* it was never kept, and never will be */
    SHEDDING_CUT = 2,     /* it was kept until here */
    SHEDDING_GONE = 3,    /* it was not kept in an earlier step */
};

/* @rules are borrowed until shedding_free(). Return: NULL without memory. */
struct shedding *shedding_new(const struct overload *rules);

/* Other rules from the next step on, borrowed as of shedding_new(). What was shed stays so; budgets begin full. */
void shedding_use(struct shedding *s, const struct overload *rules);

/* NULL is fine. */
void shedding_free(struct shedding *s);

/**
 * shedding_step() - which requests of a step are kept
 * @asks: n entries, each request once
 * @verdicts: filled in, n entries
 * What is kept costs at most the room that the ring has, if the costs are true, and what the budgets have.
 * Return: 0 or -ENOMEM: then all are kept.
 */
int shedding_step(struct shedding *s, const struct shedding_pressure *pressure,
                  const struct shedding_ask *asks, uint32_t n, enum shedding_verdict *verdicts);

/**
 * shedding_cut() - a launch within the step found less room than was foreseen
 * @asks: of shedding_step(), with what the launch costs in costs[0]; @verdicts: as they are, changed to CUT from the end
 * of the order of preference until @excess bytes are saved
 * Return: bytes that are saved, less than @excess where all are cut.
 */
uint64_t shedding_cut(struct shedding *s, const struct shedding_ask *asks, uint32_t n,
                      uint64_t excess, enum shedding_verdict *verdicts);

/* A record that held the request's rows is lost: it is not kept any more. Return: whether it was until here. */
bool shedding_lose(struct shedding *s, const char *id);

/* The request has ended: its id may come again, as another one. */
void shedding_end(struct shedding *s, const char *id);

/* Bytes a second at which the ring is emptied, as far as that was seen; 0: it never had to wait. */
uint64_t shedding_rate(const struct shedding *s);
