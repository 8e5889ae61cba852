/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What shedding.c remembers of requests, by id. Bounded: where there are too many, those that were not seen for longest are
 * forgotten. Private to shedding.c and this file; one thread at a time.
 */
#pragma once

#include "policy/overload.h"

#include <stdbool.h>
#include <stdint.h>

#define REQUEST_TABLE_MAX 65536u

struct tabled_request {
    struct tabled_request *next;
    uint64_t hash;
    uint64_t arrival;  /* its number, by the first step that had it */
    uint64_t seen;     /* number of the step that had it last */
    uint32_t n_rules;  /* under which rules it was looked at last; 0: none yet */
    bool dropped;      /* for good */
    bool kept;         /* it had a step in which it was kept */
    bool announced;    /* that it is dropped */
    bool is_protected; /* shed after all that are not */
    double per_step[1 + OVERLOAD_MAX_BUDGETS]; /* bytes that it costs, smoothed */
    char id[];
};

struct request_table {
    struct tabled_request **heads; /* of lists, by hash; NULL: empty table */
    uint32_t n;
};

/**
 * request_table_find() - the entry of @id, a new one, zeroed but for id and hash, if there is none
 * @now: number of the step, for @seen. Entries that were returned for this step stay.
 * Return: NULL without memory.
 */
struct tabled_request *request_table_find(struct request_table *table, const char *id,
                                          uint64_t now);

/* The id is forgotten, if it is known. */
void request_table_remove(struct request_table *table, const char *id);

/* Frees all entries. */
void request_table_deinit(struct request_table *table);
