/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of tensors by the position of their token, as true values in floats. What attention reads (q, say) may stand in several
 * tensors: rotated for some positions and not for others, or of another run for a prefix. One thread, as the runs' handles.
 */
#pragma once

#include "core/err.h"

#include <dmi/read.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Rows that follow one another, in positions and in their tensor. */
struct source_piece {
    int64_t position;
    uint64_t row, n;
    double scale; /* stored value = true value * scale */
    bool donated; /* another request computed them */
};

struct tensor_source {
    struct dmi_read *run; /* borrowed */
    uint64_t tensor;      /* index */
    struct dmi_read_tensor about;
    struct source_piece *pieces; /* by position; no position twice */
    size_t n, room;
    bool bare;    /* before RoPE */
    bool foreign; /* of a prefix that --prefix names */
};

#define SOURCES_MOST 6

/* Tensors of one thing: a position's row is that of the first one that has it. */
struct sources {
    struct tensor_source all[SOURCES_MOST];
    size_t n;
};

/* Adds a tensor of a run, in which each position has one row. Return: 0 or -errno with a sentence in @err. */
int sources_add(struct err *err, struct sources *sources, struct dmi_read *run, uint64_t tensor,
                bool bare, bool foreign);
/* Accepts a zeroed struct. */
void sources_deinit(struct sources *sources);

/*
 * The source of a position's row, and for how many positions from there on it is the same. Return: NULL: none has it, and *@n is how
 * many positions lack, up to @most.
 */
const struct tensor_source *sources_at(const struct sources *sources, int64_t position,
                                       uint64_t most, uint64_t *n);

/* Whether the position's row is one that another request computed. */
bool sources_borrow(const struct sources *sources, int64_t position);

/* How many positions before @end have a row that another request computed. */
uint64_t sources_borrowed(const struct sources *sources, int64_t end);

/**
 * source_read() - rows of positions that all are in one source
 * @out: gets @n rows of about.width floats, packed
 * Return: 0; -EBADMSG (damaged rows), -errno, with a sentence in @err.
 */
int source_read(struct err *err, const struct tensor_source *source, int64_t position, uint64_t n,
                float *out);
