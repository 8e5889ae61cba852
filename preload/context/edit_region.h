/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device memory for edits: one region a capture context, of the same size in each. Counters come first, then tables, each at one
 * offset in all contexts: a table may be named without saying in which context it lies.
 */
#ifndef PRELOAD_CONTEXT_EDIT_REGION_H
#define PRELOAD_CONTEXT_EDIT_REGION_H

#include "core/err.h"
#include "preload/base/cuda_abi.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EDIT_COUNTERS 16384u /* edits x requests at one time */

struct context;

/* There are places for edits. @n_bytes: of a region, 0: nobody said. Thread: the one that arms the session. Return: 0 or -ENOMEM. */
int edit_region_start(uint64_t n_bytes);

/**
 * edit_region_place() - room for a table, in each region
 * @bytes: stay until edit_region_free(), for contexts that come later
 * @at: where it lies, in units of DMI_EDIT_ALIGN; never 0
 * Thread: any. Return: 0; -ENOSPC, which @err says.
 */
int edit_region_place(struct err *err, const void *bytes, size_t n, uint32_t *at);

/* No kernel reads the table any more. Thread: any. */
void edit_region_free(uint32_t at);

/* The region of a context that is created, with all tables. Return: 0 or -errno. Thread: of device_init(). */
int edit_region_init(struct err *err, struct context *context);

/* Gives it back. Thread: of device_give_back(). */
void edit_region_give_back(struct context *context);

/* After fork, in the child. */
void edit_region_reset(void);

#endif
