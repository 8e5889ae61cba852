/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a site is, from the HookSpec that names it to the reader of a run: one description, filled by
 * policy/spec, written into the site dictionary by storage and read back from there. A plain struct: any thread may
 * read it. Source: docs/format.md 4.
 */
#ifndef DMI_SITE_H
#define DMI_SITE_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* What a row of a tensor stands for: it decides the positions that readers give rows. */
enum dmi_row {
    DMI_ROW_TOKEN = 0,   /* row r is row r of the step's batch */
    DMI_ROW_REQUEST = 1, /* one row a request: its last token of the step (logits) */
    DMI_ROW_NONE = 2,    /* rows have no token */
    DMI_ROW_COUNT
};

/* As HookSpecs and the site dictionary spell it; NULL for a number that is none. */
static inline const char *dmi_row_name(uint32_t row)
{
    static const char *const names[DMI_ROW_COUNT] = { "token", "request", "none" };
    return row < DMI_ROW_COUNT ? names[row] : NULL;
}

/* DMI_ROW_COUNT for a name that is none. */
static inline uint32_t dmi_row_from_name(const char *name)
{
    uint32_t row = 0;
    while (row < DMI_ROW_COUNT && strcmp(dmi_row_name(row), name))
        row++;
    return row;
}

/* How the ranks of a parallel engine have parts of a tensor. */
enum dmi_shard {
    DMI_SHARD_NONE = 0, /* every rank has all of it */
    DMI_SHARD_DIM = 1,  /* one dimension is divided, in order of rank */
    DMI_SHARD_SUM = 2,  /* the tensor is the sum of what the ranks have */
};

/* The axes of parallelism, in the order of dmi_step_entry.ranks. */
enum dmi_axis {
    DMI_AXIS_TP = 0,
    DMI_AXIS_PP = 1,
    DMI_AXIS_DP = 2,
    DMI_AXIS_EP = 3,
    DMI_AXIS_COUNT
};

/* As HookSpecs and the site dictionary spell it; NULL for a number that is none. */
static inline const char *dmi_axis_name(uint32_t axis)
{
    static const char *const names[DMI_AXIS_COUNT] = { "tp", "pp", "dp", "ep" };
    return axis < DMI_AXIS_COUNT ? names[axis] : NULL;
}

/* The site whose rows, one a token, are the ids of the tokens: integers. */
#define DMI_SITE_IDS "token_ids"

/* The part that filled the struct in owns the strings: the spec, the writer's options, the reader. */
struct dmi_site {
    uint32_t id; /* index in the spec and in the dictionary; what descriptors and records carry */
    const char *name;    /* "resid_pre"; may hold "{layer}", else tensors are named NAME.LAYER */
    const char *kernel;  /* pattern by which its kernel is found; NULL: by other means */
    const char *tap;     /* name of the tap by which it is found; NULL: by other means */
    const char *kind;    /* kind of forward that it belongs to; NULL: all */
    const char *note;    /* convention in words; NULL: none */
    uint32_t dtype;      /* enum dmi_dtype */
    uint32_t row;        /* enum dmi_row */
    double scale;        /* stored value = true value * scale; 1 if the spec says none */
    int64_t expect;      /* matching launches a forward; -1: not declared */
    bool has_layer;      /* its records carry a layer number */
    uint32_t n_row_dims; /* leading dimensions that together are the rows; 0 is read as 1 */
    uint32_t shard;      /* enum dmi_shard */
    uint32_t shard_dim;  /* DMI_SHARD_DIM: which dimension of the stored tensor, from 0 */
    uint32_t shard_axis; /* enum dmi_axis: over whose ranks */
    bool
        writes; /* it is a place for edits and has no records: those are another site's of the name */
    bool saves; /* of a place: edits keep rows of the tensor here, and write none */
};

#endif
