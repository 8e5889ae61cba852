/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of dmi-dump diff share. A program of one thread. */
#ifndef TOOLS_DUMP_DIFF_H
#define TOOLS_DUMP_DIFF_H

#include "tools/dump/dump.h"
#include "tools/dump/sums.h"

#include "read/records.h"

/* One of the two runs. */
struct side {
    struct reader *reader;
    struct sites sites;
    struct tensors tensors;
};

/* Two rows that differ. */
struct divergence {
    const struct tensor *tensor; /* of the run; NULL: none */
    size_t record;               /* of the run */
    uint32_t row;                /* of that record */
    int64_t position;            /* -1: not known */
    uint64_t element;
    double ours, theirs;
};

/* A tensor of the run and its counterpart. */
struct difference {
    const struct tensor *other; /* NULL: the other run lacks it */
    bool bad_shape;
    bool by_position;        /* else row i is row i */
    uint64_t n_rows, n_same; /* compared; of these with the same bits */
    uint64_t n_differ;       /* beyond what is allowed */
    uint64_t n_lacking;      /* that the other run lacks */
    struct sums sums;
    struct divergence first;

    size_t stretch; /* of the other's rows without positions: how far they are compared */
    uint64_t before;
};

struct differ {
    const struct options *options;
    struct side run, other;
    struct difference *results;  /* one a tensor of the run */
    bool *met;                   /* one a tensor of the other */
    struct records records;      /* of the other */
    struct row_pair row;         /* the run's is the reference */
    struct divergence first;     /* in the order of launches */
    uint64_t n_unreadable;       /* rows whose record cannot be decoded, on either side */
    const struct side *bad_side; /* of the last of these */
    size_t bad_record;
};

/* Of all tensors that have a counterpart. Return: 0 or -errno with a sentence in @err. */
int diff_rows(struct err *err, struct differ *differ);

/* Does nothing of the tensor differ by more than the options allow? */
bool difference_passes(const struct difference *difference, const struct options *options);

/* Of runs whose edits differ: where they changed something first, and what they should have reached and did not. Return: an exit status. */
int diff_edits(const struct differ *differ, struct report *report);

/* Return: an exit status. */
int diff_report(struct differ *differ, struct report *report);

#endif
