/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of dmi-dump verify --against share. A program of one thread. */
#ifndef TOOLS_DUMP_COMPARE_H
#define TOOLS_DUMP_COMPARE_H

#include "tools/dump/dump.h"
#include "tools/common/sums.h"

#include "read/reference.h"

#define SKETCH_COLUMNS 8

/* A captured tensor and its counterpart, and how far they are apart. */
struct compared {
    const struct reference_tensor *ref; /* NULL: not in the reference */
    bool sketch, bad_shape;
    uint64_t n_compared, n_beyond; /* rows; rows that the reference lacks */
    uint64_t n_cached; /* rows of the reference that the engine took from a prefix cache */
    struct sums sums;  /* over rows, of sketches where it is one */
    double base2;      /* square of the reference; for a sketch of the captured rows */
    double worst_row;
    int64_t worst_position;
};

struct comparer {
    struct reader *reader;
    const struct dump_options *options;
    struct reference reference;
    struct sites sites;
    struct tensors tensors;
    struct requests requests;
    struct compared *results; /* one a tensor */
    uint64_t n_unreadable;    /* stretches whose record cannot be decoded */

    struct row_pair row;
    double *signs; /* [width][SKETCH_COLUMNS] */
    uint64_t n_signs;
};

/* Error norm / reference norm. */
double compared_error(const struct compared *c);
double compared_cosine(const struct compared *c);
bool compared_passes(const struct compared *c, const struct dump_options *options);

/* The rows of all tensors that have a counterpart. Return: 0 or -errno with a sentence in @err. */
int compare_rows(struct err *err, struct comparer *comparer);

/* Return: an exit status. */
int compare_report(struct comparer *comparer, struct report *report);

/* What only one side has. Return: 0 or -ENOMEM. */
int compare_names(const struct comparer *comparer, struct report *report);

#endif
