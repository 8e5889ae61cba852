/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which tensors of a run are wanted, and which rows of them: what options and programs say. What is said several times is
 * wanted together. Not locked: the owner's thread. Source: docs/selections.md.
 */
#pragma once

#include "core/err.h"
#include "policy/interval.h"
#include "read/range.h"
#include "read/requests.h"
#include "storage/reader/reader.h"
#include "storage/text.h"

#include <stdbool.h>

/* Words of one list that are kept. */
#define SELECTION_MOST_RANGES 64

/* Numbers, or positions, as slices. None: all. */
struct slices {
    struct slice all[SELECTION_MOST_RANGES];
    size_t n;
};

/* Ranges of numbers, ascending and apart. */
struct ranges {
    struct range all[SELECTION_MOST_RANGES];
    size_t n;
};

struct selection_name {
    char *s;
    size_t n;
};

struct selection_names {
    struct selection_name *all;
    size_t n, room;
};

/* One word of a list of tokens; the slice is of positions, or a part of what the kind means: "prompt[-4:]". */
struct token_word {
    enum token_kind kind;
    struct slice slice;
};

/* A zeroed one wants all that count. */
struct selection {
    struct selection_names sites; /* a site's name, SITE.LAYER or REQUEST/SITE.LAYER; none: all */
    struct selection_names requests; /* none: all. Tensors without a request belong to every one */
    struct layer_word layers[SELECTION_MOST_RANGES]; /* none: every layer */
    size_t n_layers;
    int32_t n_of_model; /* layers, for "last" and "middle": selection_find_last(); 0: not known */
    struct token_word tokens[SELECTION_MOST_RANGES]; /* none: all */
    size_t n_tokens;
    bool rejected, superseded; /* these rows too, flagged */
    bool fill_cached; /* rows of cached tokens from requests that computed them: read/fill.h */
};

/* Frees what it owns, and leaves one that wants all. */
void selection_deinit(struct selection *select);
void selection_names_deinit(struct selection_names *names);

/* Each adds a copy. Return: 0 or -ENOMEM. */
int selection_add_name(struct selection_names *names, const char *name, size_t n);

/**
 * selection_add_layers(), selection_add_tokens(), slices_add() - the words of a list, separated by commas
 * @what: "--layers", for the sentence
 * Return: 0; -EINVAL with a sentence in @err; then some words may have been added.
 */
int selection_add_layers(struct err *err, const char *what, const char *text,
                         struct selection *select);
/* As selection_add_layers(). */
int selection_add_tokens(struct err *err, const char *what, const char *text,
                         struct selection *select);
/* As selection_add_layers(). @from_end: numbers below 0, too. */
int slices_add(struct err *err, const char *what, const char *text, bool from_end,
               struct slices *slices);

/* Among @n things, or any number of them where @n is INT64_MAX and none of the slices counts from the end. */
struct ranges slices_of(const struct slices *slices, int64_t n);
/* No slice at all has every number. */
bool slices_have(const struct slices *slices, int64_t v);
bool ranges_have(const struct ranges *ranges, int64_t v);
/* "0:2,5:6" of those that are not clear without: for a cursor. */
void slices_add_text(struct text *to, const struct slices *slices);

/* Does it want all that was captured? Rows that do not count are no matter. */
bool selection_is_all(const struct selection *select);

/* Does it have to know how many layers the model has? */
bool selection_needs_last(const struct selection *select);
/* From the records that the reader has selected: the highest layer of them is the last one. */
void selection_find_last(struct selection *select, const struct reader *reader);

/* By its words for layers; each is one of the run's. */
bool selection_wants_layer(const struct selection *select, int32_t layer);
/* Is it one of them, byte by byte? */
bool selection_names_have(const struct selection_names *names, const char *name, size_t n);
/* Whether rows of a request are wanted; @request NULL: they are nobody's. */
bool selection_wants_request(const struct selection *select, const char *request, size_t n_request);

/* Does one of the token words go by what is known of requests? */
bool selection_needs_requests(const struct selection *select);
/* The positions that are wanted of a request, once select->n_tokens says some. @end: after its last, where no request is found. */
struct ranges selection_ranges(const struct selection *select, const struct requests *requests,
                               const char *request, size_t n_request, int64_t end);

/* Whether a record may have rows in a tensor that is wanted: its request is not looked at. */
bool selection_wants_record(const struct selection *select, const struct dmi_site *site,
                            int32_t layer);

/* What it says, as options: for a cursor. */
void selection_add_text(struct text *to, const struct selection *select);

/* Adds "q" and 3 as "q.3", "blocks.{layer}.q" and 3 as "blocks.3.q". */
void tensor_add_name(struct text *to, const char *site, int32_t layer);
