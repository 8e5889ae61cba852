/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which rows of a step a site keeps: of which requests, at which positions. Rows of padding are never kept. Pure
 * functions; a struct select is immutable once read. Any thread. Source: docs/hookspec.md, "Which rows".
 */
#pragma once

#include <dmi/dmi.h>
#include <dmi/site.h>

#include <stdbool.h>
#include <stdint.h>

struct tree_node;

/* By position within the request. */
enum select_tokens {
    SELECT_ALL = 0,
    SELECT_RANGE,       /* first <= position < end */
    SELECT_PROMPT,      /* of the prompt: before n_prompt, or in a prefill where that is not said */
    SELECT_GENERATED,   /* after it, or in a decode or draft */
    SELECT_LAST,        /* the last row of each request in the step */
    SELECT_LAST_PROMPT, /* the last one of the prompt, where the engine says how long that is */
};

struct select {
    uint32_t row; /* enum dmi_row, token or request: what a row stands for */
    enum select_tokens tokens;
    int64_t first, end; /* below 0: counted from the end of the prompt */
    bool of_prompt;     /* of SELECT_RANGE: tokens of the prompt alone */
    char *
        tag; /* key of the tag whose value @requests is for; NULL: the request's id. Owned by the spec */
    char *requests; /* pattern, as a shell's; NULL: every request. Owned by the spec */
};

/* Does it leave anything but padding out? */
static inline bool select_is_default(const struct select *s)
{
    return s->tokens == SELECT_ALL && !s->requests;
}

/* Frees its texts, and leaves the default. */
void select_deinit(struct select *s);

/**
 * select_positions() - which positions of a span are kept, [*from, *to)
 * @is_last: the span holds the last row that its request has in the step
 */
void select_positions(const struct select *s, const struct dmi_span *span, bool is_last,
                      int64_t *from, int64_t *to);

/* For each span, whether it holds the last row of its request. Return: NULL without memory; free() it. */
bool *select_find_last(const struct dmi_step *step);

/* Do both choose alike? */
bool select_same(const struct select *a, const struct select *b);

/**
 * select_request() - does the pattern take the request?
 * @tags: a JSON object, or NULL. A tag matches by its text: true is "true", 3 is "3". Of a list one element has to match. "*WORD*" takes a tag
 * that has the whole word
 */
bool select_request(const struct select *s, const char *id, const char *tags);

/* The same with tags that are parsed; NULL: there are none, or no JSON. For whoever asks several times. */
bool select_request_of(const struct select *s, const char *id, const struct tree_node *tags);

/* The rows of a step that are kept, ascending. */
struct select_rows {
    bool all;       /* nothing is left out */
    uint32_t n;     /* entries */
    uint32_t n_all; /* rows that the step gives a tensor: of its batch, or spans that have tokens */
    /*
     * Row by token: rows of the batch. Row by request: the number of the span among those that have tokens; @own is then
     * its number among those that have a row of their own (no padding, no part of a prompt), @last the batch's row of its last token.
     * Allocated, @own and @last with @rows.
     */
    uint32_t *rows, *own, *last;
};

/**
 * select_rows() - the rows of a step that @s keeps
 * @step: as dmi_step_begin() takes it: checked
 * @takes: for each span, what select_request() says of it; NULL: every request
 * @out: to be freed with select_rows_deinit()
 * Return: 0 or -ENOMEM.
 */
int select_rows(const struct select *s, const struct dmi_step *step, const bool *takes,
                struct select_rows *out);

/* The same of rows by request, whatever the site's rows are: for its tensors that have one row a span (DMI_TAP_REQUESTS). */
int select_last_rows(const struct select *s, const struct dmi_step *step, const bool *takes,
                     struct select_rows *out);

/* How many of the rows [from, to) are kept; numbers as in @rows. */
uint32_t select_rows_between(const struct select_rows *rows, uint32_t from, uint32_t to);

/* Frees the lists, and leaves none. */
void select_rows_deinit(struct select_rows *rows);

/* What a tensor of some number of rows gives of them. */
struct select_pick {
    uint32_t
        n_list; /* entries of both lists, of which the first n are this tensor's: others may have more rows */
    bool all;             /* the tensor as it is */
    uint32_t n;           /* rows; 0: nothing to record */
    const uint32_t *rows; /* of the tensor, n entries; NULL: the first n, in order */
    const uint32_t *
        kept; /* what readers are to call them (docs/format.md 5, table 4); NULL: as @rows is NULL */
};

/**
 * select_pick() - the rows to copy of a tensor with @n_rows
 * A tensor that has more rows than the batch is none of that batch: a default selection takes all of it.
 */
struct select_pick select_pick(const struct select *s, const struct select_rows *rows,
                               uint32_t n_rows);

/* The same of a tensor that has one row a span, in their order; @kept has rows of the batch. @last: of select_last_rows() */
struct select_pick select_pick_last(const struct select_rows *last, uint32_t n_rows);
