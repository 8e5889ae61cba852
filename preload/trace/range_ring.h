/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What threads of the host did, on its way to the collector: each thread has a stack of open ranges and a ring of those that have ended, in memory
 * of its own. Where a ring is full ranges are lost, and counted; nobody waits.
 */
#pragma once

#include <dmi/trace.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RANGE_THREADS   64u   /* that open ranges at a time */
#define RANGE_ENTRIES   2048u /* of a thread that the collector has not taken */
#define RANGE_DEPTH     32u   /* open at a time in a thread */
#define RANGE_FACTS     4u
#define RANGE_KEY_BYTES 24u    /* of a fact, its NUL included */
#define RANGE_BYTES     72u    /* of a name, likewise; what is longer is cut */
#define RANGE_CALL_NS   50000u /* from here on a call of the driver's is one */

struct range_fact {
    char key[RANGE_KEY_BYTES];
    int64_t value;
};

struct range_entry {
    uint64_t begin_ns, end_ns; /* of CLOCK_MONOTONIC */
    uint64_t step;
    const void *
        owner; /* of the stack that it is closed by: an NVTX domain, or what says ranges by dmi_range_begin() */
    uint32_t thread;
    uint16_t depth;
    uint8_t source; /* enum dmi_range_source */
    uint8_t n_facts;
    char name[RANGE_BYTES];
    struct range_fact facts[RANGE_FACTS];
};

/* Ranges are taken from here on, or not any more. Thread: lifecycle.c's. */
void range_ring_use(bool on);

/**
 * range_ring_begin() - the calling thread opens a range
 * @owner: range_ring_end() closes the innermost one with the same; @name: of @n bytes
 * Return: 0; -ENOSPC, it is too deep, or there are too many threads: counted as lost; 1, no trace is on.
 */
int range_ring_begin(const void *owner, enum dmi_range_source source, const char *name, size_t n);

/* The calling thread's innermost open range, which range_ring_begin() has just opened, began at @begin_ns. */
void range_ring_since(uint64_t begin_ns, enum dmi_range_source source);

/* It closes the innermost one of @owner. Return: 0; -ENOENT: none is open; -ENOSPC: it is lost; 1, no trace is on. */
int range_ring_end(const void *owner);

/* A fact of the innermost open one of @owner. Return: 0; -ENOENT; -ENOSPC, it has as many; 1, no trace is on. */
int range_ring_fact(const void *owner, const char *key, int64_t value);

/* The calling thread was in the driver's function @name from @begin_ns to @end_ns: a range, where that was long. Keeps errno. */
void range_ring_call(const char *name, uint64_t begin_ns, uint64_t end_ns);

/* Hands the ranges that have ended to @fn, thread by thread. Thread: the collector. */
void range_ring_take(void (*fn)(const struct range_entry *entry));

/* Ranges that were lost so far. */
uint64_t range_ring_lost(void);

/* After fork, in the child. */
void range_ring_reset(void);
