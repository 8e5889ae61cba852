/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NVTX ranges that are open, and what a launch in them is of the spec. Ranges that are pushed belong to a thread;
 * those that are started concern all threads. A range counts the kernels that each of its sites may be, those that are launched and those
 * that are captured into a graph apart; the innermost range that a site asks for counts.
 * Thread: any; push and pop take no lock but for a new name, a launch in no range that concerns the spec takes none.
 */
#pragma once

#include "core/atomic.h"
#include "preload/function/variants.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RANGES_OPEN    64   /* ranges of a thread at a time, of those that concern the spec */
#define RANGES_DOMAINS 16   /* of a thread */
#define RANGES_STARTED 1024 /* at a time, of those that concern the spec */

/* A site within a range that is open. */
struct range_site {
    uint16_t site;
    uint32_t n_launched, n_captured; /* kernels that it may be */
};

/* What a launch took of the ranges that are open, for the caller of ranges_pick(). */
struct ranges_pick {
    bool captured;
    int kind; /* of the forward that it begins, -1: none */
    uint32_t n_counted;
    struct range_site *counted[SPEC_MAX_RANGED]; /* of the thread's own ranges */
};

/* The calling thread's; all zero at first. */
struct ranges_thread {
    struct ranges_own *own; /* NULL: it has pushed nothing yet */
    uint32_t n_open;        /* that concern the spec */
    int kind;               /* of the forward that its next launch begins, from 1; 0: none */
};
extern __thread __attribute__((tls_model("initial-exec"),
                               visibility("hidden"))) struct ranges_thread ranges_thread;
extern uint32_t ranges_n_started; /* that concern the spec; atomic */

/* Is there any range in which launches of the calling thread are of interest? */
static inline bool ranges_any(void)
{
    return ranges_thread.n_open || ranges_thread.kind || atomic_load_relaxed(&ranges_n_started);
}

/* ------------------------------------------------------------------------- ranges come and go */

/* A range with the text @text, of @n bytes, is pushed in @domain (NULL: the default one), or the last one popped. */
void ranges_push(const void *domain, const char *text, size_t n);
void ranges_pop(const void *domain);

/* A range is started, or ended by any thread. @id: unique within the domain while it is open. */
void ranges_start(const void *domain, uint64_t id, const char *text, size_t n);
void ranges_end(const void *domain, uint64_t id);

/* ------------------------------------------------------------------------- launches */

/**
 * ranges_pick() - count a launch of @func in the ranges that are open
 * @captured: it becomes a node of a graph. Entered. Return: what the launch is of the spec: a variant of @func, or @func itself.
 */
const struct func *ranges_pick(const struct func *func, bool captured, struct ranges_pick *pick);

/* The driver refused the launch. */
void ranges_untake(const struct ranges_pick *pick);

/* The next forward, begun by a range of the calling thread, is that of the graph that it launches now. Return: -1: none. */
int ranges_take_kind(void);

/* After fork, in the child. */
void ranges_reset(void);
