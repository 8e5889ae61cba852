/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading a run: what is intact is read, what is not is named. Files may be hostile, damaged, or still growing;
 * nothing in them is trusted before its checksum and its bounds were checked. Opening a closed run reads its
 * index; records and steps are read when they are selected, from the chunks that hold them. A struct reader is
 * for one thread at a time; what it hands out is borrowed until the next reader_select(), reader_refresh(),
 * reader_verify() or reader_close(). For tools: the capturing library links none of this. Source:
 * docs/format.md.
 */
#pragma once

#include "core/err.h"
#include "storage/ran.h"

#include <dmi/counters.h>
#include <dmi/edit_account.h>
#include <dmi/format.h>
#include <dmi/site.h>
#include <dmi/trace.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct reader;

/* Which rows of a span were accepted. */
struct reader_outcome {
    struct dmi_outcome at; /* checked against its step */
    const uint8_t *list;   /* private */
    const char *id;        /* private */
    size_t step, place;    /* private */
};

/* Private: the id of a span, where it is not the stored one. */
struct reader_shown_id {
    size_t step;
    uint32_t span;
    const char *id;
    size_t n_id;
};

struct reader_step {
    const struct dmi_step_entry *entry;
    const struct dmi_span_entry *spans;    /* entry->n_spans; offsets checked */
    uint64_t place;                        /* sequence number of its chunk */
    bool again;                            /* that chunk repeats it */
    const struct reader_outcome *outcomes; /* by span; see reader_outcome_of() */
    size_t n_outcomes;
    const struct reader_shown_id *shown; /* private: by span */
    size_t n_shown;
};

/* A request ended, or was shed. */
struct reader_end {
    const char *id; /* as reader_span_id() shows it */
    size_t n_id;
    bool
        shed; /* no end: rows of it are not captured any more, from the last of the steps @after on */
    uint32_t reason; /* of an end: enum dmi_end, or a number that is none */
    uint64_t time_ns;
    size_t after;    /* how many of the steps beside it came before it */
    uint64_t place;  /* private: the chunk that says it, */
    uint32_t number; /* and which of its entries */
};

/* Steps in the order of their sequence, each with what became of its rows; and ends among them, in the order of the steps. */
struct reader_steps {
    struct reader_step *all;
    size_t n;
    struct reader_end *ends;
    size_t n_ends;
    bool any_before;
    struct dmi_step_entry before; /* the last step before the first one */

    /* private */
    size_t room, ends_room;
    struct reader_outcome *outcomes; /* by step and span */
    size_t n_outcomes, outcomes_room;
    struct reader_shown_id *shown; /* by step and span */
    size_t n_shown, shown_room;
    void **held; /* bytes that no chunk has any more */
    size_t n_held, held_room;
};

/* How far the steps of a run were read; zeros: not at all. It may be copied, to read some of them again. */
struct reader_step_place {
    uint64_t next; /* sequence number */
    uint64_t span; /* private: of sequence numbers at a time */
    bool done, any_before;
    struct dmi_step_entry before; /* the last step before it */
};

struct reader_record {
    struct dmi_record at;    /* checked: sizes agree, site exists */
    uint32_t n_rows;         /* product of the row dimensions */
    const uint32_t *kept;    /* for each row, which row of the batch it is; NULL: row r is r */
    double n_stored;         /* bytes in the file: its share of its group's, metadata left out */
    uint64_t place;          /* sequence number of its chunk; of joined ranks that of one */
    uint32_t number;         /* its index in that chunk; likewise */
    uint32_t segment, chunk; /* private */
    const struct reader_step *step; /* NULL: none, or not in the files */
};

struct reader_pair {
    const char *key, *value;
};

struct reader_problem {
    const char *site, *reason, *sentence;
    uint64_t times;
};

/* Something was changed while the run was written. */
struct reader_change {
    uint64_t number;                /* in its run, from 0 */
    uint64_t time_ns, launch, step; /* as struct run_change has them */
    const char *what;
    const char *more; /* a JSON object of what else is noted; NULL: nothing */
};

/* What became of the rows that an edit wants: an account of the file `edits`. */
struct reader_edit_account {
    const struct dmi_edit_account *at; /* checked: texts end, the state is known */
    uint64_t missed;                   /* of all reasons */
    uint64_t lost; /* neither written nor missed: lost_at_kill, or still under way */
    bool holds;    /* written + missed (+ lost, where not closed) = due */
};

/* All of them; of joined runs those of each. */
struct reader_edits {
    bool
        known; /* there is such a file, and it can be read; of joined runs: of each that has places */
    bool missing; /* there are places, and no such file, or none that can be read */
    const struct reader_edit_account *accounts;
    size_t n;
    uint64_t ended, marked, in_force; /* as of struct dmi_edit_accounts */
};

/* What a thread of the host did. */
struct reader_range {
    struct dmi_range_entry at; /* checked: the texts are there */
    const char *name, *facts;  /* at.name_bytes and at.facts_bytes bytes; borrowed */
};

/* Something happened to the trace. */
struct reader_mark {
    struct dmi_mark at; /* checked: the text is there */
    const char *text;   /* at.text_bytes bytes; borrowed */
};

enum reader_state {
    READER_CLOSED = 0,  /* closed cleanly */
    READER_RUNNING = 1, /* a process still writes it */
    READER_KILLED = 2,  /* it ended without closing */
};

/* One of several runs that are read as one. */
struct reader_rank {
    const char *path, *uuid;
    enum reader_state state;
    bool known;       /* its steps say which rank it is; else nothing was captured in it */
    int32_t ranks[8]; /* of its first step, as in dmi_step_entry */
};

struct reader_run {
    const char *path; /* of the folder, or of a lone segment */
    enum reader_state state;
    char uuid[37];
    const char *job; /* one id for all processes of one command; NULL: none */
    const char *model, *host, *library_version, *spec_path; /* NULL: not said */
    uint64_t pid, start_ns;
    const struct reader_pair *conventions, *absent, *about; /* the last: what dmi_describe() said */
    size_t n_conventions, n_absent, n_about;
    const struct reader_problem *problems;
    size_t n_problems;
    const struct reader_change *changes; /* as they came */
    size_t n_changes;
    struct reader_edits edits;
    size_t
        n_beside;  /* runs of earlier commands in the folder that was named: they are passed over */
    size_t n_runs; /* that are joined; 1: this is one run */
    const struct reader_rank *ranks; /* n_runs of them; NULL: this is one run */
    size_t n_segments;
    uint64_t n_file_bytes;               /* of all segments */
    uint64_t n_torn;                     /* bytes of a torn tail */
    uint64_t n_read;                     /* bytes read from the run's files so far */
    const struct dmi_counters *counters; /* a copy; NULL: none that can be read */
};

/* Something that a reader should know. */
struct reader_finding {
    bool damage;  /* something is not as it was written; false: a note (a torn tail after a kill) */
    bool unknown; /* written by a newer program in a way that this one does not know; no damage */
    const char *file; /* name within the run's folder */
    int64_t chunk;    /* sequence number, -1: none */
    uint64_t offset;  /* in the file */
    const char *text;
};

/**
 * reader_open_index() - the structure of a run: sites, sums, and where records are
 * @path: a run's folder, a single segment file, or a folder with runs: then the run, or those of the ranks, of the command that was
 *        started last; FOLDER/latest likewise, whether or not there is such a link
 *
 * The runs of ranks are read as one: they have the same job, and their steps say different ranks (or nothing was captured
 * in them); a run or rank that is there twice is left out. Their steps are joined by the engine's number, their records by step, site, layer and occurrence, as the
 * sites' shards say; docs/format.md 8.1. Closed segments are known by their footers, the others by walking over their chunks. There are no records and
 * no steps before reader_select(). Damage does not make it fail: see reader_finding(). It fails where there is no
 * run, several of one command are not those of ranks, or nothing in them can be read. Return: 0 or -errno with a sentence in @err; -ENOTSUP:
 * the run has another format version, which the sentence names.
 */
int reader_open_index(struct err *err, const char *path, struct reader **out);

/* As reader_open_index(), then reader_select() of everything. */
int reader_open(struct err *err, const char *path, struct reader **out);

/* As reader_open(), and no footer is believed: all chunks are walked over. */
int reader_open_distrusting(struct err *err, const char *path, struct reader **out);

/* The folders of runs in @path, sorted; hidden ones, which are still made, and the link to the latest are passed over. Return: 0 or
 * -errno with a sentence. */
int reader_list_runs(struct err *err, const char *path, char ***out, size_t *n);
void reader_free_paths(char **paths, size_t n);

struct reader_query;

enum { READER_E_AGAIN = 1 };

/**
 * reader_select() - read the records that match and the steps that they name
 * @query: NULL: all records and all steps. A range of positions selects the records of the steps in whose spans it
 *         lies; which rows are meant is for the caller to see
 * Only chunks that hold such records are read, the payload not yet. Replaces the records and steps selected before.
 * Return: 0 or -errno with a sentence in @err.
 */
int reader_select(struct err *err, struct reader *reader, const struct reader_query *query);

/**
 * reader_window() - select the records of the next chunks, and the steps that they name, in place of those before
 * After reader_select() of a query by window, of one run.
 * @first: sequence number of a chunk
 * @most: records; whole chunks are taken, so there may be more
 * @next: gets the sequence number to go on with; UINT64_MAX: no chunk is left
 * @n_gone: gets the number of records whose segment was deleted since the reader found it
 * Return: 0; READER_E_AGAIN (an index was wrong: begin anew with the first chunk); -errno with a sentence in @err.
 */
int reader_window(struct err *err, struct reader *reader, uint64_t first, size_t most,
                  uint64_t *next, uint64_t *n_gone);

/**
 * reader_next_steps() - some of the steps of a run that is read by window, in their order
 * @place: goes on after them; @place->done: they are the last ones
 * @out: gets them in place of those that it had; zeroed the first time, to be freed with reader_free_steps(). Valid until
 *       the reader is refreshed, selected anew or closed. What reader_window() selected stays
 * Return: 0, also with none; READER_E_AGAIN (an index was wrong: begin anew); -errno with a sentence in @err.
 */
int reader_next_steps(struct err *err, struct reader *reader, struct reader_step_place *place,
                      struct reader_steps *out);
/* Leaves none. Accepts a zeroed struct. */
void reader_free_steps(struct reader_steps *steps);

/* For qsort(): the order of reader_record(). */
int reader_record_order(const void *a, const void *b);

/**
 * reader_refresh() - read on: chunks and segments that have come, state, counters, problems
 * What was selected is selected again. Return: 0 or -errno with a sentence in @err; the reader is then only good for
 * reader_close().
 */
int reader_refresh(struct err *err, struct reader *reader);

/**
 * reader_only_ranks() - of runs that are joined, look only at those with these ranks, from the next reader_select() on
 * @ranks: by enum dmi_axis; below 0: any. What is divided over an axis of which one rank is left is not joined
 * Return: how many runs are left; of a run that is not joined 1 if its steps say these ranks, else 0.
 */
size_t reader_only_ranks(struct reader *reader, const int32_t ranks[DMI_AXIS_COUNT]);

/**
 * reader_each_step_times() - when steps ran, in the order of the file; of joined runs one run after the other
 * @at: borrowed until @fn returns
 * A chunk that cannot be read is named as a finding. Memory holds one chunk at a time. Return: 0 or -errno with a sentence in
 * @err.
 */
int reader_each_step_times(struct err *err, struct reader *reader,
                           void (*fn)(void *ctx, const struct dmi_step_times *at), void *ctx);

/* The same of what threads of the host did. */
int reader_each_range(struct err *err, struct reader *reader,
                      void (*fn)(void *ctx, const struct reader_range *range), void *ctx);

/* The same of what happened to the trace. */
int reader_each_mark(struct err *err, struct reader *reader,
                     void (*fn)(void *ctx, const struct reader_mark *mark), void *ctx);

/* The same of what ran on the device: kernels, copies, fills. Their names are borrowed likewise. */
int reader_each_ran(struct err *err, struct reader *reader,
                    void (*fn)(void *ctx, const struct ran *ran), void *ctx);

/* The same of sums of it by step and name. */
int reader_each_sum(struct err *err, struct reader *reader,
                    void (*fn)(void *ctx, const struct ran_sum *sum), void *ctx);

/* Whether the chunk with this sequence number is to be read. */
typedef bool reader_wants(void *ctx, uint64_t chunk);

/* As reader_each_step_times(), a chunk at a time, by its sequence number. @wants: which ones; NULL: all. */
int reader_step_times_by_chunk(struct err *err, struct reader *reader, reader_wants *wants,
                               void (*fn)(void *ctx, uint64_t chunk,
                                          const struct dmi_step_times *all, size_t n),
                               void *ctx);

/* The same of sums. */
int reader_sums_by_chunk(struct err *err, struct reader *reader, reader_wants *wants,
                         void (*fn)(void *ctx, uint64_t chunk, const struct ran_sum *all, size_t n),
                         void *ctx);

/* How many entries there are of both, by the heads of their chunks; whether there are chunks of a trace at all. Return: 0 or -errno. */
int reader_count_trace(struct reader *reader, uint64_t *n_step_times, uint64_t *n_marks, bool *any);

/* Frees the reader and all that it handed out. Accepts NULL. */
void reader_close(struct reader *reader);
/* For _cleanup_. */
void reader_closep(struct reader **reader);

/* What the run is; borrowed. */
const struct reader_run *reader_run(const struct reader *reader);

/* What the spec states under @key; of joined runs what the first of them does. NULL: nothing. */
const char *reader_convention(const struct reader *reader, const char *key);

/* Entries of the site dictionary. */
size_t reader_n_sites(const struct reader *reader);
/* Entry @i of the site dictionary; its strings are borrowed. */
const struct dmi_site *reader_site(const struct reader *reader, size_t i);

/* Those selected, in launch order. */
size_t reader_n_records(const struct reader *reader);
const struct reader_record *reader_record(const struct reader *reader, size_t i);

/* Those selected; by window those that the records at hand name, without ends. */
const struct reader_steps *reader_steps(const struct reader *reader);
size_t reader_n_steps(const struct reader *reader);
const struct reader_step *reader_step(const struct reader *reader, size_t i);

/* Ranks of the first step of the run or the selection, as in dmi_step_entry; NULL: it has none. By window once one was read. */
const int32_t *reader_first_ranks(const struct reader *reader);

/* What was said of a span's rows; NULL: nothing, all of them count. */
const struct reader_outcome *reader_outcome_of(const struct reader_step *step, uint32_t span);

/**
 * reader_outcome_has() - whether a span's row @token counts
 * @outcome: NULL: nothing was said
 * @n: gets how many rows from it on have the same fate, at least; UINT32_MAX: all that follow
 */
bool reader_outcome_has(const struct reader_outcome *outcome, uint32_t token, uint32_t *n);

/* Requests that ended or were shed, in the order of the steps. DMI_SPAN_LAST says it too, and is not among them. */
size_t reader_n_ends(const struct reader *reader);
const struct reader_end *reader_end(const struct reader *reader, size_t i);

/*
 * A span's request id, which may hold any byte. An id that comes again after its end is another request: its second user
 * is shown as ID~2. Where only some steps are selected, ids are as they are stored.
 */
const char *reader_span_id(const struct reader_step *step, uint32_t span, size_t *n_bytes);

/* Ids of the tokens that a prefix cache had: n_cached of the span, of the positions before its first. NULL: not said. */
const int32_t *reader_cached_ids(const struct reader_step *step, uint32_t span);

/* What to look for; what is left at its neutral value is not asked for. */
struct reader_query {
    const char *site; /* name, NULL: any */
    bool by_layer;    /* then only @layer */
    int32_t layer;
    const char *request; /* NULL: any */
    size_t n_request;
    int64_t first_position; /* of the token range, with @request */
    int64_t end_position;   /* after its last; <= first_position: no bound */
    uint64_t first_chunk;   /* only records of chunks of this sequence number and higher ones */
    bool all_steps;         /* all steps of the run, also those that no such record names */
    bool
        by_window; /* no records and no steps: reader_window() and reader_next_steps() read some at a time, of all steps */
};

/**
 * reader_decode() - a record's raw bytes
 * @out: record->at.n_bytes bytes
 * Checks the checksums of all it touches. Return: 0, -EBADMSG, -EIO, -ENOMEM, -ENOTSUP (a codec or an
 * encoding that this program does not know); @err says which
 * plane of which block, and where in the file.
 */
int reader_decode(struct err *err, struct reader *reader, const struct reader_record *record,
                  void *out);

/**
 * reader_verify() - decode everything, check every byte of every file, believe no footer
 * Reads the run anew; what it finds replaces the findings. Return: 0, or -errno if it could not go on.
 */
int reader_verify(struct reader *reader);

/* Whether @name is that of a file of edits in a run's folder: a note names it, and may be hostile. NULL: false. */
bool reader_is_edits_file(const char *name);

/* Findings so far: of the open, of selections, of reader_verify(). */
size_t reader_n_findings(const struct reader *reader);
/* Finding @i; borrowed until the next one. */
const struct reader_finding *reader_finding(const struct reader *reader, size_t i);

/* The sums of a site entry: expected against what lies in the segments. */
struct reader_account {
    struct dmi_tally expected, counted, found; /* as counted by the process, as found in segments */
    struct dmi_tally dropped;  /* 2^64-1 where the sum does not fit; then it does not balance */
    struct dmi_tally released; /* captured, and deleted on purpose since */
    struct dmi_tally lost;     /* neither captured nor dropped: lost_at_kill, or still in flight */
    bool holds; /* captured + released + dropped (+ lost, where not closed) = expected */
    uint64_t launches;
};

/* Return: false where there are no counters; then only @found is filled. */
bool reader_account(const struct reader *reader, uint32_t site, struct reader_account *account);
