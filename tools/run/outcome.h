/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What became of the edits that a command was started with, by the accounts of its runs (<dmi/edit_account.h>). An edit that was asked for
 * and not done is said. One thread.
 */
#pragma once

#include "policy/edit.h"
#include "read/runs.h"
#include "tools/run/holder.h"

#include <stdbool.h>

struct outcome_edit; /* what is known of one */

struct outcome {
    char *out;          /* the folder of runs; owned */
    struct runs before; /* that were there when the command began: they are others' */
    struct outcome_edit *edits;
    uint32_t n_edits;
    uint32_t n_runs; /* of the command */
    bool elsewhere;  /* ranks of the engine run under another command */
};

/* Before the command begins. @out: where its runs will be. Return: false without memory. */
bool outcome_begin(struct outcome *outcome, const struct edits *edits, const char *out);

/**
 * outcome_made() - the command has ended: were its edits made?
 * @job: what the manifests of its runs say
 * @holder: tells whether processes of the command go on; those are waited for, for a moment, where an edit is not done yet
 * @library: its name, for sentences
 * Return: false: an edit was not, which is said on stderr.
 */
bool outcome_made(struct outcome *outcome, const char *job, const struct holder *holder,
                  const char *library);

/* Accepts what was zeroed. */
void outcome_deinit(struct outcome *outcome);
