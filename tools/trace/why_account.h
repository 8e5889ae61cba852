/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the time of turns went: each nanosecond of a turn is in one line. The device is busy where a kernel, copy or fill ran, whichever step launched it; else a line says what
 * the turn's thread did meanwhile, as far as its ranges and its waits tell. What is not known has a line of its own. A program of one thread.
 */
#pragma once

#include "core/hashed.h"
#include "tools/trace/why_turns.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum why_line_kind {
    LINE_BUSY,    /* something ran; its names are those of what ran */
    LINE_OWN,     /* kernels of DMI's alone ran */
    LINE_STOPPED, /* the device was idle, and no thread of the process ran */
    LINE_CALL, /* the device was idle, and the thread in a call of the driver's, which is the name */
    LINE_WAIT,  /* and it waited for the device */
    LINE_RANGE, /* and in a range, whose name it is */
    LINE_BETWEEN, /* idle between the first and the last that ran in the step; of sums, which say no more */
    LINE_NOT_SEEN, /* idle, and nothing is known */
    LINE_KINDS
};

/* What tells busy from idle. */
enum why_how {
    HOW_RECORDS, /* by all records that ran meanwhile */
    HOW_SUMS,    /* by sums of the step, in whose span nothing of another step ran */
    HOW_HOST,    /* nothing: lines are of the host, over all of the turn */
    HOWS
};

/* What ran under a name, or what the thread did. */
struct why_part {
    enum why_line_kind kind;
    uint32_t name; /* in the account's names; 0: none */
    uint64_t ns;
};

/* Each pair of kind and name once. Accepts being zeroed. */
struct why_parts {
    struct why_part *all; /* owned */
    size_t n, room;
};

/* @ns more of one of them; 0: nothing. Return: false without memory. */
bool why_parts_add(struct why_parts *parts, enum why_line_kind kind, uint32_t name, uint64_t ns);

/* A turn's account. Accepts being zeroed, but for @turn. */
struct why_account {
    const struct why_turn *turn;
    size_t whose; /* the caller's; a turn may have several accounts */
    enum why_how how;
    struct why_parts parts; /* their sum is the turn; in any order */
    /* while it is filled: intervals in the turn */
    struct why_interval *ran, *did;
    size_t n_ran, ran_room, n_did, did_room;
    size_t n_open, next; /* of @did: add_host() says which */
};

struct why_interval {
    uint64_t begin_ns, end_ns;
    uint32_t name;
    uint16_t depth;
    uint16_t kind; /* enum why_line_kind */
};

/* Names of accounts. Accepts being zeroed. */
struct why_names {
    char **all; /* of number i + 1 */
    size_t n, room;
    struct hashed by_hash;
};

/* "" of 0. */
const char *why_name(const struct why_names *names, uint32_t name);
void why_names_deinit(struct why_names *names);

/* Fills the accounts of @n turns of @run, in the order of their begins. Return: 0; REPORT_IMPOSSIBLE, which is said. why_accounts_deinit() in any case. */
int why_accounts_fill(const struct trace_run *run, const struct why_turns *turns,
                      struct why_names *names, struct why_account *accounts, size_t n);
void why_accounts_deinit(struct why_account *accounts, size_t n);
