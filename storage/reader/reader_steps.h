/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files share that read steps and outcomes: all of a run, those that records name, or some at a time. One thread a
 * reader.
 */
#pragma once

#include "storage/reader/reader_private.h"

/* ---- extents.c */

/* Which steps are meant. */
struct reader_step_filter {
    uint64_t first, end;   /* sequences from the one to before the other */
    const uint64_t *named; /* sorted; NULL: all of them */
    size_t n_named;
    bool ends; /* also the ends among them */
};

/* Whether steps may be missing that later segments repeat. */
bool reader_is_incomplete(const struct reader *reader);

/* Under which sequence an outcome is found: its step's, or 0. */
uint64_t reader_outcome_place(const struct reader_outcome *outcome);

/* Whether a step of that sequence is meant. */
bool reader_filter_has(const struct reader_step_filter *filter, uint64_t sequence);

/* Finds those of all segments, as far as they are not known. Return: 0, -EAGAIN (begin again), -errno. */
int reader_find_extents(struct reader *reader);

/* The lowest sequence at or after @from that a step or an outcome may have; UINT64_MAX: none. */
uint64_t reader_next_sequence(const struct reader *reader, uint64_t from);

/* What becomes of a chunk that is loaded. Return: 0 or -ENOMEM. */
typedef int reader_chunk_visit(struct reader *reader, struct reader_segment *segment,
                               struct reader_chunk *chunk, const struct reader_step_filter *filter,
                               struct reader_steps *out);

/* Visits the chunks of @of, and those that repeat them where they count, that may have what is meant. Return: as
 * reader_find_extents(). */
int reader_visit_extents(struct reader *reader, uint32_t of,
                         const struct reader_step_filter *filter, reader_chunk_visit *visit,
                         struct reader_steps *out);

/* ---- steps.c */

/* Adds the steps of the records at hand to those that are named. Return: 0 or -ENOMEM. */
int reader_name_steps(struct reader *reader);
/* Selects the steps that are named, or all. Return: 0, -EAGAIN (begin again), -errno. */
int reader_select_steps(struct reader *reader, bool all);
/* The same of what is meant, to @out, which has none. */
int reader_load_steps(struct reader *reader, const struct reader_step_filter *filter,
                      struct reader_steps *out);
/* The step of a sequence number, if it is there. */
struct reader_step *reader_find_step(const struct reader_steps *steps, uint64_t sequence);
/* How many of the steps have a sequence number up to @sequence. */
size_t reader_steps_to(const struct reader_steps *steps, uint64_t sequence);
/* Takes the bytes of a chunk over, unless they cannot be read again. Return: 0 or -ENOMEM. */
int reader_hold(struct reader_steps *steps, struct reader_chunk *chunk);
/* Forgets them; room stays. */
void reader_clear_steps(struct reader_steps *steps);

/* ---- outcomes.c */

/* Those of the selected steps. Return: as reader_select_steps(). */
int reader_select_outcomes(struct reader *reader);
/* Those of steps that reader_load_steps() has read. */
int reader_load_outcomes(struct reader *reader, const struct reader_step_filter *filter,
                         struct reader_steps *out);
/* Gives them to their steps, and puts the ends in order. */
void reader_attach_outcomes(struct reader_steps *steps);

/* ---- reused_ids.c */

struct reader_naming;

/**
 * reader_name_begin() - begin to name requests anew
 * @by_sequence: steps are found again by their sequence; else by their place among all of them, as joined ones have no
 *               sequence that rises
 * Return: NULL: no memory.
 */
struct reader_naming *reader_name_begin(struct reader_names *names, bool by_sequence);
/* All steps of the run, in their order, some at a time. Return: 0 or -ENOMEM. */
int reader_name_take(struct reader_naming *naming, const struct reader_steps *steps);
/* Frees it. @whole: all were taken: the names can be used. */
void reader_name_end(struct reader_naming *naming, bool whole);
/* Gives each span and each end the id that is shown. Return: 0 or -ENOMEM. */
int reader_show_ids(const struct reader_names *names, struct reader_steps *steps);
/* Frees them: they are wanted anew. */
void reader_unname(struct reader_names *names);
/* Frees them, and leaves none. */
void reader_free_names(struct reader_names *names);

/* ---- windows.c */

/* As reader_next_steps(), with ids as they are stored. Return: also -EAGAIN. */
int reader_fill_steps(struct reader *reader, struct reader_step_place *place,
                      struct reader_steps *out);
int reader_next_steps_one(struct err *err, struct reader *reader, struct reader_step_place *place,
                          struct reader_steps *out);
int reader_window_one(struct err *err, struct reader *reader, uint64_t first, size_t most,
                      uint64_t *next, uint64_t *n_gone);
