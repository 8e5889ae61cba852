/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From records in launch order to tensors as users know them: what was captured under one name, for one layer and
 * one request, over all forwards, rows by position. Nothing of the payload is read here. What is borrowed from the
 * reader lives as long as the reader does. Not locked: the owner's thread. Source: docs/format.md 6.
 */
#pragma once

#include "core/hashed.h"
#include "read/attribution.h"
#include "read/stretches.h"
#include "read/requests.h"
#include "read/selection.h"
#include "read/sites.h"
#include "storage/reader/reader.h"
#include "storage/text.h"

#include <dmi/dmi.h>
#include <dmi/format.h>

#include <stdbool.h>

/* What changes from record to record. */
enum tensor_mixed {
    TENSOR_ALIKE = 0,
    TENSOR_MIXED_TYPE, /* dtype or width: it cannot be one tensor */
    TENSOR_MIXED_SCALE, /* entries of its site's name have other scales: each value has that of its record's entry */
};

/* What keeps cached tokens from having rows of another request. */
enum fill_fault {
    FILL_NONE = 0,
    FILL_OF_REQUESTS, /* the site's rows stand one a request: they are no token's */
    FILL_SEES_LATER, /* attention sees later tokens: rows depend on more than the ids up to theirs */
    FILL_NO_IDS,     /* the engine did not say the ids of the cached tokens */
    FILL_NO_DONOR,   /* no request has computed these rows, with the same ids from position 0 on */
};

struct tensor {
    char *key;           /* REQUEST/SITE.LAYER or SITE.LAYER; UTF-8 without NUL, unique in a run */
    const char *name;    /* the part after the request */
    const char *request; /* borrowed, not terminated; NULL: none */
    size_t n_request;
    const struct dmi_site *site; /* entry of the first record; others may share its name */
    uint32_t order;              /* id of the first entry of that name */
    int32_t layer;
    uint32_t dtype;
    uint32_t n_tail, tail[DMI_MAX_DIMS]; /* dimensions after the rows */
    uint64_t width;                      /* their product */
    uint64_t n_rows;
    struct stretch *stretches; /* rows in the tensor's order */
    size_t n_stretches, room;
    enum tensor_mixed mixed;
    enum fill_fault unfilled;    /* why rows of cached tokens were not taken from another request */
    struct range unfilled_range; /* positions of the first of them */
};

struct tensors {
    struct tensor *all; /* by request, site, layer */
    size_t n, room;
    size_t n_stretches;    /* of all */
    uint64_t n_short;      /* records with fewer rows than their step says */
    uint64_t n_nobody;     /* rows that belong to no request (padding) */
    uint64_t n_superseded; /* rows whose position a later record has too */
    uint64_t n_rejected;   /* rows whose drafts were rejected */
    uint64_t n_filled;     /* rows that were taken from other requests */
    bool by_request;       /* the run has step metadata */
};

/* More than that is more than any program can use, and what a small hostile file can claim. */
#define TENSORS_MAX           (4u << 20)
#define TENSORS_MAX_STRETCHES (64u << 20)

struct tensors_query {
    const char *implied; /* request of a run without step metadata, NULL: none */
    const struct alias *aliases;
    size_t n_aliases;
    const struct selection *select; /* NULL: all */
};

/**
 * tensors_build() - the tensors of the records that are selected, by request and site
 * Without step metadata rows get the positions that follow from the rows of each forward.
 * Return: 0, -ENOMEM, -E2BIG (too many); with a sentence in @err.
 */
int tensors_build(struct err *err, const struct reader *reader, const struct sites *sites,
                  const struct tensors_query *query, struct tensors *out);
/* Accepts a zeroed struct. */
void tensors_deinit(struct tensors *tensors);

/* Tensors of records that the reader has window by window: the first fields are the owner's to set, the others are 0 at first. */
struct tensors_growing {
    const struct reader *reader;
    const struct sites *sites;
    const struct selection *select; /* NULL: all */
    struct tensors *out;
    bool
        in_part; /* some rows are added without their tensor's others: a tensor without rows stays */
    struct hashed by_hash; /* private: of the tensors */
};

#define TENSORS_NO_ROWS SIZE_MAX

/**
 * tensors_add() - the tensor of rows that are wanted, and the rows
 * @number: of their record, as struct stretch has it; TENSORS_NO_ROWS: the tensor alone
 * Return: 0, -ENOMEM, -E2BIG.
 */
int tensors_add(struct tensors_growing *growing, const struct part *part, size_t number);

/**
 * tensors_end() - put rows and tensors in order, and drop those that are not wanted
 * @requests: read where selection_needs_requests()
 * @result: of tensors_add(): an error is only put into words
 * Return: as tensors_build().
 */
int tensors_end(struct err *err, struct tensors_growing *growing, const struct requests *requests,
                int result);

/* Leaves the tensors and tokens that are selected, where tensors_build() took all. @requests: read as by tensors_end(). Return: 0 or -ENOMEM. */
int tensors_narrow(struct tensors *tensors, const struct requests *requests,
                   const struct selection *select);

/* The tensor of a request's rows; @order: as struct tensor has it. Return: NULL: none. */
const struct tensor *tensors_find(const struct tensors *tensors, const char *request,
                                  size_t n_request, uint32_t order, int32_t layer);

/* What is wrong with a mixed tensor, to stand after its name. */
const char *tensor_mixed_text(const struct tensor *tensor);

/* Whether it is a tensor that is wanted. */
bool selection_wants(const struct selection *select, const struct tensor *tensor);
