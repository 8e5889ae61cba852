/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A run against another one, or against reference activations: which tensor is compared with which, rows with the rows at the same
 * positions, and where they part first. A program of one thread.
 */
#pragma once

#include "tools/common/aliases.h"
#include "tools/common/names.h"
#include "tools/common/sums.h"

#include "read/records.h"
#include "read/reference.h"
#include "read/tensors.h"

#define SKETCH_COLUMNS 8

/* One of the two runs. */
struct side {
    struct reader *reader; /* the owner's, before anything is selected */
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
    const struct tensor *other;               /* NULL: the other run lacks it */
    const struct reference_tensor *reference; /* NULL: the reference lacks it */
    bool bad_shape;
    bool sketch;             /* the reference has sketches of the rows: tests/reference/README.md */
    bool by_position;        /* else row i is row i */
    uint64_t n_rows, n_same; /* compared; of these with the same bits (in another run) */
    uint64_t n_differ;       /* beyond what is allowed */
    uint64_t n_lacking;      /* that the other side lacks */
    uint64_t n_cached;       /* of the reference that the engine took from a prefix cache */
    uint64_t n_undecoded;    /* that both have, and one of them cannot be decoded */
    struct sums sums;        /* over rows, of sketches where it is one */
    double base2; /* square of the run or the reference; for a sketch of the run's rows */
    double worst_row;
    int64_t worst_position;
    struct divergence first; /* in another run */

    size_t stretch; /* of the other's rows without positions: how far they are compared */
    uint64_t before;
};

enum differed_state { DIFFERED_COMPARED, DIFFERED_LACKING, DIFFERED_DAMAGED };

/* A row of the run, and what became of its comparison. */
struct differed_row {
    size_t tensor;  /* of the run */
    uint64_t index; /* in that tensor */
    int64_t position;
    enum differed_state state; /* compared; the other run lacks it; one of both cannot be decoded */
    const struct sums *sums;   /* of a row that was compared */
};

struct differ {
    /* the owner's to set; the others are 0 at first */
    struct side run, other;
    const struct reference *
        reference; /* in place of the other run; differ_pair() is not called: its owner fills @run and @results */
    const struct selection *select;  /* requests as ID, or ID=NAME as the other run calls it */
    double tolerance, row_tolerance; /* both 0: bits are to be the same, in another run */
    void (*undecoded)(const struct err *why); /* is called once for a record */
    int (*row)(void *arg,
               const struct differed_row *row); /* NULL, or is called for each; not 0 ends it */
    void *arg;

    struct difference *results;      /* one a tensor of the run */
    bool *met;                       /* one a tensor of the other */
    struct divergence first;         /* in the order of launches */
    uint64_t n_unreadable;           /* rows whose record cannot be decoded, on either side */
    uint64_t n_unreadable_stretches; /* of the run */

    /* private */
    struct aliases aliases; /* tensors borrow their names of requests */
    struct records records; /* of the other */
    struct row_pair pair;   /* of two runs the first one is the reference */
    double *signs;          /* [width][SKETCH_COLUMNS], of sketches */
    uint64_t n_signs;
    const struct side *bad_side; /* of the last record that could not be decoded */
    size_t bad_record;
};

/**
 * differ_pair() - selects in both runs, and finds the tensors that have a counterpart
 * Return: 0; -ENOENT: neither run has what was selected; -errno; with a sentence in @err. differ_deinit() in any case.
 */
int differ_pair(struct err *err, struct differ *differ);
/* Compares their rows. Return: 0, -errno with a sentence in @err, or what row() returned. */
int differ_rows(struct err *err, struct differ *differ);
/* Accepts a zeroed struct. Readers are left open. */
void differ_deinit(struct differ *differ);

/* Whether a tensor whose rows come by position has a row there. */
bool differ_has(const struct tensor *tensor, int64_t position);

/* Has the other side a tensor of this name? */
bool difference_is_paired(const struct difference *difference);
/* Does nothing of the tensor differ by more than is allowed? */
bool difference_passes(const struct differ *differ, const struct difference *difference);
/* Error norm / reference norm. */
double difference_error(const struct difference *difference);

/* ------------------------------------------------------------------------- as JSON */

/* As a new reference: null where there is none. */
json_t *differ_divergence(const struct divergence *divergence);
/* A tensor that has a counterpart. */
json_t *differ_tensor(const struct differ *differ, size_t tensor);
/* One object a site whose tensors were compared, in the order of the run. Return: NULL without memory. */
json_t *differ_sites(const struct differ *differ);

/* What only one has: tensors by site, to be freed, and rows of tensors that both have. Return: 0 or -ENOMEM. */
int differ_only(const struct differ *differ, struct names *run, struct names *other);
uint64_t differ_rows_only_in_other(const struct differ *differ);

struct differ_totals {
    uint64_t n_compared, n_differing; /* tensors */
    uint64_t n_rows, n_same;
    uint64_t n_only; /* tensors that one run has, and rows that the other alone has */
    bool equal;      /* as far as there is a counterpart, where that is a reference */
};

/* Over all tensors, once rows are compared. */
struct differ_totals differ_total(const struct differ *differ);
