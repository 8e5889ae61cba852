/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dmi-dump recover: what can be read of a run, written as a new run. Steps stand before the first record that names
 * them, records in the order of their chunks, outcomes at the end. A program of one thread.
 */
#pragma once

#include "core/err.h"
#include "storage/reader/reader.h"
#include "storage/text.h"
#include "storage/writer/run.h"

#include <stdbool.h>

/* What is not in the new run. */
struct recover_lost {
    struct dmi_tally unread;  /* written by the process, and cannot be read */
    struct dmi_tally at_kill; /* on their way when it ended */
    uint64_t n_chunks;        /* that damage was found in */
    uint64_t n_steps;         /* that the process had noted */
    uint64_t n_stepless;  /* records whose step is one of them: they are there, without tokens */
    uint64_t n_edit_rows; /* that edits wanted, and of which nothing is known */
    uint64_t n_packs;     /* files of edits that cannot be copied */
    bool unknown;         /* no counters that can be believed: what is lost is not known */
};

struct recovery {
    struct reader *reader;     /* the run that is read; walked */
    struct run *run;           /* the new one */
    struct dmi_tally *written; /* by site */
    bool *step_written;        /* by index in the reader */
    struct text steps;         /* metadata that waits to be written */
    struct recover_lost lost;
    uint64_t n_undecoded;
    uint64_t n_not_fetched;      /* of what a table has */
    uint64_t n_records, n_steps; /* written */
};

/**
 * recover_open() - begin the new run: dictionary, spec, job and model of the old one
 * @folder: gets the run's folder
 * Return: 0 or -errno with a sentence in @err.
 */
int recover_open(struct err *err, struct recovery *recovery, const char *folder);

/* Writes all steps, records and outcomes that can be read; names records that cannot. Return: as above. */
int recover_copy(struct err *err, struct recovery *recovery);

/* Sets the new run's counters so that they balance, and finds what was lost. */
void recover_count(struct recovery *recovery);

/* Copies accounts and files of edits. Return: 0 or -ENOMEM. */
int recover_edits(struct recovery *recovery);

/* Frees what is its own, not the reader. */
void recover_deinit(struct recovery *recovery);
