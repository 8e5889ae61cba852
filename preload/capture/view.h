/* SPDX-License-Identifier: Apache-2.0 */
/* Where a tensor lies and what it is, as a site of the spec and the parameters of one launch, or a tap, say it. Any thread. */
#pragma once

#include "policy/spec.h"

#include <dmi/dmi.h>
#include <dmi/edit.h>
#include <dmi/ring.h>

#include <stdbool.h>
#include <stdint.h>

#define VIEW_MAX_BYTES (1ull << 31) /* a record; the copy kernel counts in 32 bits */

struct tensor_view {
    struct dmi_gather gather;
    uint64_t n_bytes;   /* of all rows; 0: the launch has none */
    uint32_t row_bytes; /* 0 where it is not known */
    uint64_t first,
        n_touched;         /* address range that is read; of slots the first, then view_limit() */
    uint64_t n_slot_bytes; /* of what is read of one slot; 0: view_limit() was not called */
    uint64_t n_list_bytes; /* of the list of slots; 0: there is none */
    uint32_t dtype;
    uint32_t n_dims;
    uint32_t dims[SPEC_MAX_DIMS]; /* elements; dims[0] is rows, those of two row dimensions too */
    bool of_requests;             /* of a tap: a row is a span's */
    uint64_t plus; /* of a place for edits: address of the tensor that is added to it; 0: none */
};

/* A row as edits see it; no elements where it is not known. Heads lie side by side in a dimension of their own, the first after the rows. */
struct dmi_edit_shape view_shape(const struct tensor_view *view);

enum {
    VIEW_E_EXPR = 1, /* overflow, division by zero, or an impossible size */
    VIEW_E_PARAM =
        2, /* the launch has no such parameter, or the driver does not say where it lies */
    VIEW_E_TOO_LARGE = 3, /* over VIEW_MAX_BYTES */
    VIEW_E_POINTER = 4,   /* null, or the extent leaves the address space */
};

/**
 * view_of_site() - what to read at this launch
 * Return: 0 or VIEW_E_*; after an error view->dims[0] holds the rows if they were known, else 0.
 */
int view_of_site(const struct spec_site *site, const struct expr_env *env,
                 struct tensor_view *view);

/**
 * view_limit() - of a tensor in slots: which of them may be read
 * @end: of the memory that @view->first lies in
 * Sets the number of slots, and the range that they are; may be called again. Return: false where there is not even one.
 */
bool view_limit(struct tensor_view *view, uint64_t end);

/* What to read of a tap that was checked: its dtype, dimensions and row dimensions can be. */
int view_of_tap(const struct dmi_tap *tap, struct tensor_view *view);
