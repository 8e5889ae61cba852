/* SPDX-License-Identifier: Apache-2.0 */
/* What a handle of <dmi/read.h> holds. For one thread at a time, as the handle is. */
#pragma once

#include "core/err.h"
#include "storage/map.h"
#include "read/edited.h"
#include "read/missing.h"
#include "read/requests.h"
#include "read/tensors.h"
#include "storage/reader/reader.h"

/* What belongs to one state of the files: refreshing replaces all of it. */
struct view {
    struct reader *reader;
    struct sites sites;
    struct tensors tensors;
    struct requests requests;
    struct map keys; /* of tensors */
    struct seen seen;
    struct edited_all edited; /* once it is asked for: handle_edited() */
    bool has_edited;
};

struct dmi_read {
    struct view view;
    struct selection select;       /* owned */
    int32_t ranks[DMI_AXIS_COUNT]; /* as reader_only_ranks() */
    bool failed;                   /* a refresh failed: nothing of the view is left */
    struct err err;

    struct { /* the records decoded last, of two tensors that are read in turn */
        size_t record;
        uint8_t *data;
        uint64_t n_data;
    } raw[2];
    unsigned older; /* of both: the next record takes its place */
    struct {        /* where the last rows were found: rows are mostly asked for in order */
        uint64_t tensor, stretch, first;
    } cursor;
};

/* Everything of the view but the reader, which must be open; view_empty() first. */
int view_fill(struct err *err, struct view *view, struct selection *select);
void view_empty(struct view *view);
/* view.edited is there from now on. Return: 0; -ENOMEM, noted. */
int handle_edited(struct dmi_read *run);
/* What was decoded is of no use any more. */
void handle_forget(struct dmi_read *run);

/* Keeps the sentence for dmi_read_error(). Return: @code. */
int handle_fail(struct dmi_read *run, int code, const char *what);

/* As abi_hand_out() of core/abi.h, with the sentence for dmi_read_error(). */
int handle_hand_out(struct dmi_read *run, void *to, const void *from, uint32_t n_ours);
