/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a large write goes past the page cache (O_DIRECT). The page cache takes a burst at the speed of memory, and pages
 * that cost CPU time and memory; the disk itself takes it at its own speed, for almost no time of a CPU. Which of
 * them costs less is measured, again and again. Not locked: the owner's thread. Source: open(2).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DIRECT_ALIGN  4096u      /* of offsets, lengths and memory */
#define DIRECT_LEAST  (1u << 20) /* bytes of a write for which the question is asked */
#define DIRECT_BUFFER (4u << 20) /* bytes of a call */
#define DIRECT_TRY    32u        /* of so many large writes one goes the other way */

/* Accepts being zeroed. */
struct direct {
    void *buffer; /* DIRECT_BUFFER, aligned; owned; NULL: not yet */
    bool off;     /* the file system does not want it, or there is no memory */
    double cost
        [2]; /* of a byte: ns by the clock and ns of a CPU, summed; [true]: direct; 0: not known */
    uint32_t n_written; /* large writes */
};

/* What a write begins with. */
struct direct_time {
    uint64_t mono_ns, cpu_ns;
};

/* Whether the next large write should go that way. */
bool direct_is_next(const struct direct *direct);

/* The buffer, made if there is none. Return: NULL without memory, and it is off. */
void *direct_buffer(struct direct *direct);

/* Now, and what this thread has had of a CPU. */
struct direct_time direct_begin(void);

/* What a large write cost: @n_bytes since @begin. */
void direct_note(struct direct *direct, bool was_direct, uint64_t n_bytes,
                 const struct direct_time *begin);

/* Frees the buffer. */
void direct_deinit(struct direct *direct);
