/* SPDX-License-Identifier: Apache-2.0 */
/* What a run says of edits: which were in force when, and what became of the rows that they wanted. A program of one thread. */
#pragma once

#include "tools/dump/dump.h"

#include "read/edit_history.h"

/* The command: takes an open run and prints. Return: an exit status. */
int dump_edits(struct reader *reader, const struct dump_options *options);

/* Writes what is in force in the end as a file of edits, and their vectors beside it. Return: 0 or -errno with a sentence in @err. */
int edits_export(struct err *err, const struct reader_run *run, const struct edit_history *history,
                 const char *path, bool force);

/* In one line, or a member: how many edits and what became of their rows; nothing of a run without places. Return: an exit status. */
int edits_summary(struct report *report, const struct reader *reader);

/* stats --edits: a row an edit, and in JSON a row a request. Return: an exit status. */
int edits_table(struct report *report, const struct reader *reader);

/* A line where an edit was in force: what differs from another source may be its work. Return: an exit status. */
int edits_remark(struct report *report, const struct reader *reader);
