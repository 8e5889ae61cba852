/* SPDX-License-Identifier: Apache-2.0 */
/* The commands of dmi-dump, and what they have in common. A program of one thread. */
#pragma once

#include "tools/dump/options.h"
#include "tools/dump/output.h"

#include "read/account.h"
#include "read/edited.h"
#include "read/requests.h"
#include "read/tensors.h"
#include "storage/reader/reader.h"

/* Opens a run as the command reads it, @out also where it fails; the selection learns how many layers it has. Return: 0; -ENOTUNIQ: a folder of several runs; -errno; with a sentence in @err. */
int dump_open(struct err *err, struct dump_options *options, const char *path, struct reader **out);

/* Each is a command: takes an open run and prints. Return: an exit status. */
int dump_list(struct reader *reader, const struct dump_options *options);
/* As dump_list(). */
int dump_show(struct reader *reader, const struct dump_options *options);
/* As dump_list(). */
int dump_stats(struct reader *reader, const struct dump_options *options);
/* As dump_list(). */
int dump_verify(struct reader *reader, const struct dump_options *options);
/* Takes the run before anything is selected. Return: an exit status; DUMP_OK: the other run holds the same. */
int dump_diff(struct reader *reader, const struct dump_options *options);
/* As dump_list(). */
int dump_export(struct reader *reader, const struct dump_options *options);
/* Takes the run before anything is selected. Return: an exit status; DUMP_OK: the new run has all that was written. */
int dump_recover(struct reader *reader, const struct dump_options *options);

/* list, of a folder that holds several runs. Return: an exit status. */
int dump_list_runs(const char *folder, bool json);

/* verify --against: adds what it compared to @report. Return: an exit status. */
int dump_compare(struct reader *reader, const struct dump_options *options, struct report *report);

/* What run this is: members, or lines. */
void facts_run(struct report *report, const struct reader *reader);
/* Records in the segments, whichever are selected. */
uint64_t facts_n_records(const struct reader *reader);
/* "closed", "running" or "killed" */
const char *facts_state(const struct reader_run *run);
void facts_problems(struct report *report, const struct reader_run *run);
/* How many steps were timed, where any were. Return: 0 or -errno. */
int facts_trace(struct report *report, struct reader *reader);
/*
 * Whether the trace of each run agrees with itself and with its marks, as dmi-trace check judges it. What is lost and counted is no failure here: *@holds
 * stays true. Return: likewise.
 */
int facts_trace_account(struct report *report, struct reader *reader, bool *holds);
/* What was changed while it was written. */
void facts_changes(struct report *report, const struct reader_run *run);
/* Members only. */
void facts_pairs(struct report *report, const char *key, const struct reader_pair *pairs, size_t n);
json_t *facts_object(const struct reader_pair *pairs, size_t n);

/* Findings as a member, or as lines on stderr. Return: how many are damage. */
size_t facts_findings(struct report *report, const struct reader *reader);

/* Whether the accounting balances: a member, or a line. */
void facts_account(struct report *report, const struct reader *reader, const struct account *total);

/* Sites with launches that no sum holds: a member, or a line each. */
void facts_left_out(struct report *report, const struct reader_run *run);

/* A segment by itself, so without counters. */
bool facts_is_segment(const struct reader_run *run);

/* Tables of requests, whose costs are known: how far they are, and what they cost. */
void list_requests(struct report *report, const struct reader *reader,
                   const struct requests *requests, const struct edited_all *edited,
                   const struct selection *select);
void list_request_costs(struct report *report, const struct reader *reader,
                        const struct requests *requests, const struct selection *select);

/* Says why a record cannot be decoded: it is damaged, or a newer program wrote it. */
void complain_undecoded(const struct err *why);

/* Says that memory ran out. Return: DUMP_USAGE. */
int no_memory(void);
