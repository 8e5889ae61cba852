/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What became of the rows that edits want, for each edit and request, in the run's file of it (<dmi/edit_account.h>):
 *
 *   due = written + missed{reason}
 *
 * Kernels count what is written, in each capture context; the rest is counted here, at each launch of a place. A row is due once at
 * each place and layer in which its edit does something. The account of a request that has ended goes into its edit's total once all
 * is known of it. Thread: any that entered the session, but where it says more.
 */
#pragma once

#include "policy/edit.h"

#include <stdint.h>

#define ACCOUNTS_NONE UINT32_MAX

/* What the run notes of a request of which a row was missed; @more as of session_note_change_with(). */
typedef void accounts_note_fn(const char *what, const char *more);

/* The run is open. Thread: one, before any edit is in force. */
void accounts_start(struct dmi_edit_accounts *file, accounts_note_fn *note);

/**
 * accounts_find() - the account of an edit in a request
 * @request_id: NULL: of rows whose request is not known
 * *@miss: DMI_EDIT_MISS_NO_ROOM where there are too many; the account is then the edit's alone
 */
uint32_t accounts_find(const struct edit_use *use, const char *request_id, int *miss);

/* @n rows more are due. */
void accounts_due(uint32_t account, int64_t n);

/* @n of those are not written. */
void accounts_missed(uint32_t account, enum dmi_edit_miss why, int64_t n);

/* The edit takes rows of the bank that @donor, a request, has saved. The run notes it. */
void accounts_source(uint32_t account, const char *bank, const char *donor);

/* The request has ended: its accounts go into totals once all is known of them. */
void accounts_end(const char *request_id);

/**
 * accounts_collect() - what kernels of a context have written
 * @counts: their counters, as struct dmi_edit has them
 * @seen: what was collected of each, the context's own
 * Thread: one at a time of a context.
 */
void accounts_collect(const uint64_t *counts, uint64_t *seen);

/* Settles accounts of requests that have ended. Thread: any. */
void accounts_settle(void);

/* How many edits are in force. Thread: whoever changes them. */
void accounts_in_force(uint64_t n);

/* All launches are over: what is not written by now was not run. Thread: the last flush's. */
void accounts_finish(void);

/* Rows of a request that edits with `on_miss: abort` have missed so far. */
int64_t accounts_aborting(const char *request_id);

/* Adds what the edit's requests come to, together, to the sums. */
void accounts_sum(uint64_t uid, uint64_t *due, uint64_t *written,
                  uint64_t missed[DMI_EDIT_MISS_COUNT]);

/* After fork, in the child. */
void accounts_reset(void);
