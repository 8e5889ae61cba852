/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which edits wrote to which rows of which request. This is the one place that answers it: what was in force at a request's steps (edit_history.h),
 * what the edits want (their texts in edits-N.pack), and what became of their rows. Strings are borrowed from the reader. Not locked: the
 * owner's thread. Source: docs/edits.md, docs/format.md 6.3, 10.2.
 */
#pragma once

#include "read/edit_history.h"
#include "read/edit_packs.h"
#include "read/range.h"
#include "read/requests.h"
#include "storage/text.h"

#define EDITED_NOBODY                                                                              \
    SIZE_MAX /* in place of a request: rows whose request the engine did not say */

/* Positions that an edit wanted, with one coefficient. */
struct edited_part {
    struct range positions;
    const struct edit_use *use; /* NULL: its text cannot be read */
    const char *tags;           /* of the request then; not terminated */
    size_t n_tags;
    int64_t n_prompt;
};

/* What one edit did in one request. */
struct edited {
    size_t request; /* index in struct requests, or EDITED_NOBODY */
    size_t order;   /* private */
    const char *
        name; /* NULL: edits may have been in force, and the run does not say which; nothing else is known then */
    const char *site; /* the place that it writes */
    uint64_t uid;
    const struct edit_use
        *use; /* NULL: its text cannot be read: it may have written all layers and positions */
    struct edited_part *parts; /* in the order of the steps */
    size_t n_parts, room;
    bool counted; /* the run says what became of its rows */
    uint64_t due, written;
    struct text layers, text; /* edited_layers(), edited_phrase() */
};

struct edited_all {
    struct edit_history history;
    struct edited *all; /* by request, in the order in which edits are done; those of nobody last */
    size_t n, room;

    /* private */
    struct edit_packs packs;
    struct edited_version *versions; /* by change */
    const struct requests *requests;
    const struct reader *reader;
    size_t *last;  /* by request, then nobody: 1 + the index of the entry that was added last */
    size_t *first; /* by request, then nobody: where its entries begin */
};

/**
 * edited_build() - what edits did in the requests of a run
 * @reader, @requests: with all steps selected; borrowed until edited_deinit()
 * An edit that wrote no row of a request is not among the request's. Return: 0 or -ENOMEM. edited_deinit() accepts what was zeroed.
 */
int edited_build(const struct reader *reader, const struct requests *requests,
                 struct edited_all *out);
void edited_deinit(struct edited_all *all);

/* The edits of a request, or of EDITED_NOBODY. Return: how many. */
size_t edited_of(const struct edited_all *all, size_t request, struct edited **out);

/* Did it write the row of its place, in the layer (-1: none) and at the position (-1: not known)? */
bool edited_wrote(const struct edited *e, int32_t layer, int64_t position);

struct tensor;

/* The names of edits that wrote rows of the tensor, an array; of the row at @position alone, where that is not -1. Return: NULL: none did. */
json_t *edited_names(const struct edited_all *all, const struct tensor *tensor, uint32_t site,
                     int64_t position);

/* Do records of the site show what edits wrote there: is it a place's `capture: after`? */
bool edited_is_shown(const struct reader *reader, uint32_t site);

/* "0,3-7"; "all": in each layer that its place has. */
const char *edited_layers(struct edited *e);
/* "calm (resid_post, layer 1, positions 0-5)": to stand in a sentence. */
const char *edited_phrase(struct edited *e);

/* The phrases of a request's edits, after commas. */
void edited_add_phrases(struct text *to, const struct edited_all *all, size_t request);

/**
 * edited_sum() - add what an edit added to a row
 * @n: elements of the row
 * The numbers are those of the edit, not rounded to the tensor's type. Return: 1; 0: it did not write that row; -ENODATA: its text cannot be
 * read; -ENOTSUP: it does something else than adding vectors, or to rows of another width.
 */
int edited_sum(const struct edited *e, int32_t layer, int64_t position, float *sum, uint64_t n);
