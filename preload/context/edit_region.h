/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory for edits: tables in a region of device memory, one a capture context, each table at one offset in all of them, so that it may be
 * named without saying in which context; and counters in pinned host memory, to which kernels add. The drain follows: it uploads
 * tables that were placed after its context was created, and hands on what the counters say.
 */
#pragma once

#include "core/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct context;

/* What the drain of each context calls every few milliseconds, and at its end. */
struct edit_watch {
    void (*collect)(const uint64_t *counts,
                    uint64_t *seen); /* the context's counters, and what was seen of them */
    void (*settle)(void);
};

/* There are places for edits. @n_bytes: of a region, 0: nobody said. Thread: the one that arms the session. */
void edit_region_start(uint64_t n_bytes, const struct edit_watch *watch);

/**
 * edit_region_place() - room for a table, in each region
 * @bytes: of malloc(); on success the region's, which frees them some time after edit_region_free(), for contexts that come later
 * @at: where it lies, in units of DMI_EDIT_ALIGN; never 0
 * Thread: any. Return: 0; -ENOSPC, which @err says.
 */
int edit_region_place(struct err *err, void *bytes, size_t n, uint32_t *at);

/* No kernel reads the table any more; its bytes go at once, or when no context uploads tables. Thread: any. */
void edit_region_free(uint32_t at);

/* Have all contexts that run the tables that were placed so far? Waits for it. Thread: any that holds no lock. */
bool edit_region_wait(uint64_t timeout_ns);

/* Bytes of pinned host memory that a context needs for its counters. */
size_t edit_region_counter_bytes(void);

/* The region of a context that is created, with all tables. Return: 0 or -errno. Thread: of device_init(). */
int edit_region_init(struct err *err, struct context *context);

/* Gives it back, and what it is on the host. Thread: of device_give_back(), of device_forget(). */
void edit_region_give_back(struct context *context);
void edit_region_forget(struct context *context);

/* New tables, and what was written. Thread: the context's drain. */
void edit_region_follow(struct context *context, uint64_t now_ns);

/* Are all launches over that wrote by edits, and what they wrote handed on? Thread: the same, when it ends. */
bool edit_region_is_over(struct context *context);

/* After fork, in the child. */
void edit_region_reset(void);
