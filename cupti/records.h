/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A buffer of CUPTI's activity records as events: what ran on the device, and when. CUPTI's own walker says where each record lies; nothing
 * outside of the buffer is read. Pure but for the walker: any thread. Source: cupti/layouts.h.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* cuptiActivityGetNextRecord: CUptiResult, 0 where there is one. */
typedef int records_next(uint8_t *buffer, size_t n_valid, uint8_t **record);

#define RECORDS_END 12 /* CUPTI_ERROR_MAX_LIMIT_REACHED: no record comes after it in the buffer */

/* One kernel, copy or fill that ran. A kernel has no bytes; copies and fills have no shape. */
struct records_event {
    uint32_t kind;                    /* enum layouts_kind */
    uint32_t correlation;             /* of the launch: all of one graph launch have one */
    uint64_t begin_ns, end_ns;        /* CLOCK_REALTIME */
    uint32_t device, context, stream; /* CUPTI's ids; the device is a CUDA ordinal */
    uint32_t graph;                   /* id; 0: it was launched by itself */
    uint64_t node;                    /* id, or that of the node that it copies; 0: likewise */
    uint32_t grid[3], block[3];
    uint32_t static_shared, dynamic_shared; /* bytes a block */
    uint32_t registers;                     /* a thread */
    uint32_t how;                           /* of a copy: enum CUpti_ActivityMemcpyKind */
    uint64_t bytes;                         /* of a copy or fill */
    const char *
        name; /* of a kernel, mangled; NULL: not said. CUPTI's: borrowed while its module is loaded */
};

/* Is it a kernel that this library launches itself? @name: NULL: not said. */
bool records_is_own(const char *name);

/* What came of a buffer. */
struct records_walk {
    uint64_t n;         /* records that the walker found */
    uint64_t n_no_time; /* of those read, which have no times that can be: they are not handed on */
    uint64_t n_unread;  /* of kinds that were not asked for, or that reach beyond the buffer */
    uint64_t n_strange; /* that end elsewhere than the table says */
    int refused;        /* CUPTI's error that kept the walker from going on last; 0: none */
};

/**
 * records_walk() - hand each record of a buffer to @fn
 * @version: of cuptiGetVersion. If the table does not know it, only the beginning that all versions have is read, and no distance is checked
 * @n_valid: bytes of @buffer that CUPTI says are valid
 * The event is @fn's while it runs. What is found is added to @walk. Return: the walker's last result; RECORDS_END, or what kept it from going on.
 */
int records_walk(records_next *next, uint32_t version, uint8_t *buffer, size_t n_valid,
                 struct records_walk *walk,
                 void (*fn)(void *ctx, const struct records_event *event), void *ctx);
