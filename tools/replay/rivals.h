/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows that have a position of their tensor in common with other rows: a request was preempted and computed it again, or
 * a site fired several times in a step for one layer. Which of them count follows from all of them, so they are kept in
 * memory; those of other requests and sites are not. A program of one thread.
 */
#pragma once

#include "read/attribution.h"
#include "storage/map.h"
#include "read/requests.h"
#include "read/tensors.h"

#define RIVALS_RECENT 32u

/* A site and a layer. */
struct rivals_key {
    uint32_t order; /* as struct tensor has it */
    int32_t layer;
};

/* The steps that they had records of. */
struct rivals_layer {
    struct rivals_key key;
    uint64_t recent[RIVALS_RECENT]; /* sequence numbers of the last steps */
    size_t n;
    uint64_t forgotten_end; /* steps before this one may be no longer in @recent */
    bool again;             /* it had two records of a step, or may have had */
};

struct rivals {
    const struct reader *reader;
    const struct sites *sites;
    const struct selection *select;
    struct requests requests;
    bool *of_request; /* by request: it computed a position twice */
    int64_t *ends;    /* by request: after its last position, so far */
    size_t of_room, ends_room;
    struct map layers;
    struct rivals_layer **all_layers;
    size_t n_layers, layers_room;
    bool any;

    struct tensors tensors; /* with a selected site: all that are wanted; the rows only of rivals */
    struct tensors_growing growing;
    struct reader_record *records; /* with such rows, in the recorded order */
    size_t n_records, records_room;
    struct rivals_rows {
        uint32_t tensor, stretch;
    } * rows;      /* that count, or were asked for, record by record */
    size_t *first; /* by record, and one more: where its rows begin */
};

/* The arguments are borrowed. */
void rivals_begin(struct rivals *rivals, const struct reader *reader, const struct sites *sites,
                  const struct selection *select);

/* First of all: the requests, by the steps of the run, some at a time. Return: 0 or -ENOMEM. */
int rivals_take(struct rivals *rivals, const struct reader_steps *steps);

/* Then the sites, record by record, in the recorded order. Return: 0 or -ENOMEM. */
int rivals_look(struct rivals *rivals, const struct reader_record *record);

/* Once all were looked at: do they have to be gathered? */
bool rivals_are_needed(const struct rivals *rivals);

/* Gathers those among the rows of record @index. @attribution: its add() is changed. Return: 0, -ENOMEM, -E2BIG. */
int rivals_gather(struct rivals *rivals, struct attribution *attribution, size_t index);

/* Once all were gathered: which of them count. @result: of rivals_gather(). Return: as tensors_end(). */
int rivals_settle(struct err *err, struct rivals *rivals, int result);

/* Whether rows of the record may have rivals: rivals_of() then has those that count. */
bool rivals_has(const struct rivals *rivals, const struct reader_record *record,
                const char *request, size_t n_request);

/* The rows of a record. Return: how many. */
size_t rivals_of(const struct rivals *rivals, const struct reader_record *record,
                 const struct rivals_rows **out);

/* Accepts a zeroed struct. */
void rivals_deinit(struct rivals *rivals);
