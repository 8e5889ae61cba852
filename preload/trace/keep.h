/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A user asks for the last steps, kernel by kernel: a thread hands the question to the collector, which stores and answers once it has the records of
 * all steps that had ended.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Steps by number, from @first to before @end. */
struct keep_window {
    uint64_t first, end;
};

enum keep_state {
    KEEP_DONE,
    KEEP_OFF,     /* no records are kept in memory here */
    KEEP_BUSY,    /* another thread has asked, and waits */
    KEEP_LATE,    /* the collector has not answered in time: it will store them */
    KEEP_ENDS,    /* the process ends: likewise */
    KEEP_REFUSED, /* the disk has not taken all of them */
};

struct keep_answer {
    enum keep_state state;
    struct keep_window window; /* that is stored: steps without a record are in it, too */
    uint64_t gone;             /* steps that were asked for, and were not in memory any more */
    uint64_t records;          /* that were stored now */
};

/* Records will be in memory once CUDA is initialised: until then no step has any, and none is kept. Thread: lifecycle.c's. */
void keep_expect(void);

/* Records are in memory from here on, or no more, or they will not be: then a thread that waits gets KEEP_OFF. Thread: the collector, or lifecycle.c's. */
void keep_use(bool use);

/* What a thread does for a moment while it waits. Return: false: it is to wait no longer. */
typedef bool keep_meanwhile(void);

/* Asks for the last @n_steps of those that have ended, 0: all that are in memory, and waits for a few seconds. Thread: any, but the collector. */
struct keep_answer keep_ask(uint64_t n_steps, keep_meanwhile *meanwhile);

/* What is asked. Return: false: nothing is. Thread: the collector. */
bool keep_asked(struct keep_window *asked);

/* It is done. Thread: the collector. */
void keep_done(const struct keep_answer *answer);

/* After fork, in the child. */
void keep_reset(void);
