/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What became of the rows that edits want: for each edit and request
 *
 *   due = written + missed{reason}
 *
 * The device counts what is written (kernels/edit.cu), in each context; the rest is counted here, at each launch of a place. A row is
 * due once at each place and layer in which its edit does something. Thread: any that entered the session.
 */
#ifndef PRELOAD_EDIT_ACCOUNTS_H
#define PRELOAD_EDIT_ACCOUNTS_H

#include "policy/edit.h"

#include <stdint.h>

/**
 * accounts_find() - the account of an edit in a request
 * @version: number of the edits' version
 * @request_id: NULL: of rows whose request nobody knows
 * *@miss: EDIT_MISS_NO_ROOM where there are too many; the account is then the edit's alone
 */
uint32_t accounts_find(uint64_t version, uint32_t edit, const char *request_id, int *miss);

/* @n rows more are due. */
void accounts_due(uint32_t account, int64_t n);

/* @n of those are not written. */
void accounts_missed(uint32_t account, enum edit_miss why, int64_t n);

/* After fork, in the child. */
void accounts_reset(void);

#endif
