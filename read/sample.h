/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a sample is: the rows of one request, each position from 0 to the last one once. A tensor that is no sample is left
 * out by name; no reader pads it, shortens it or mixes it. Pure but for memory: any thread. Source: docs/format.md 8.
 */
#pragma once

#include "read/requests.h"
#include "read/tensors.h"
#include "storage/text.h"

enum sample_fault {
    SAMPLE_WHOLE = 0,
    SAMPLE_OF_NOBODY, /* its rows belong to no request */
    SAMPLE_OF_BEAMS, /* its request searched with beams: rows of one position are of several sequences */
    SAMPLE_MIXED,       /* what its values mean changes from record to record */
    SAMPLE_LACKS_ROWS,  /* positions that were computed, and were not captured or are damaged */
    SAMPLE_LACKS_CACHE, /* positions that a prefix cache had: no row of them was computed */
    SAMPLE_ROWS_TWICE,  /* rejected or superseded rows stand beside those that count */
    SAMPLE_INCOMPLETE, /* another tensor that belongs to the sample is not there, or does not fit */
    SAMPLE_LACKS_MASK, /* a file of loss masks has none for its request */
    SAMPLE_GREW,       /* a dataset that the export goes on with has fewer tokens of its request */
    SAMPLE_NO_PROMPT,  /* tokens by where generation begins are asked for, and that is not known */
    SAMPLE_NO_TOKENS,  /* its request has none of the tokens that are asked for */
    SAMPLE_RUNS,       /* its request goes on, and the dataset would keep what there is of it */
    SAMPLE_N_FAULTS
};

/**
 * sample_fault() - what keeps the rows of a tensor from being a sample
 * @select: the tokens that are wanted of each request; NULL: all
 * @why: gets what is wrong, to stand after the tensor's name: "lacks positions 0-15, ..."
 */
enum sample_fault sample_fault(const struct tensor *tensor, const struct requests *requests,
                               const struct selection *select, struct text *why);

/* In words, to stand after a count: "3 without all rows". */
const char *sample_fault_name(enum sample_fault fault);
