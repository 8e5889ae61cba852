/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ran on the device, as the columns of a TRACE chunk, and sums of it, as those of a SUMS chunk: written one by one, read likewise. Records
 * that are alike in all but time share a shape. Pure; the owner's thread. Source: docs/format.md 6.7, 6.8.
 */
#pragma once

#include "core/hashed.h"
#include "storage/text.h"

#include <dmi/trace.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* One more than a site's id, and than a layer; 0: none, or not known. */
struct ran_place {
    uint64_t site, layer;
};

/* A kernel, a copy or a fill. */
struct ran {
    struct dmi_trace_shape shape; /* but for where its name is; @name_bytes counts */
    const char *name;             /* shape.name_bytes bytes; borrowed */
    uint64_t begin_ns, end_ns;    /* CLOCK_REALTIME */
    uint64_t step;                /* DMI_RAN_FIRST and the number of the step, or below */
    uint64_t correlation;         /* CUPTI's id of its launch */
    uint64_t graph, node;         /* CUPTI's ids; 0: it was launched by itself */
    uint64_t bytes;               /* of a copy or fill */
    struct ran_place place;       /* of a kernel */
};

/* Is it a kernel of DMI's? @name: shape->name_bytes bytes; nothing else has a name that begins so. */
static inline bool ran_is_own(const struct dmi_trace_shape *shape, const char *name)
{
    return shape->name_bytes > 4 && !memcmp(name, "dmi_", 4);
}

/* What records of one step have in common. */
struct ran_sum {
    struct dmi_trace_shape shape; /* as above; without grid, block, context and stream */
    const char *name;             /* likewise */
    uint64_t begin_ns;            /* CLOCK_REALTIME: of the first record of the step */
    uint64_t step;                /* as above */
    uint64_t n;
    uint64_t sum_ns,
        most_ns; /* with DMI_RAN_BUSY: in which one of them ran at least, and the longest time between in which none did */
    uint64_t bytes; /* with DMI_RAN_BUSY: nanoseconds from the first begin to the last end */
};

#define RAN_COLUMNS  10
#define RAN_NEEDED   8 /* without sites the other columns are not there */
#define SUMS_COLUMNS 7

/* Records or sums, the one or the other, on their way into a chunk. Accepts being zeroed. */
struct ran_writer {
    struct text columns[RAN_COLUMNS], shapes, strings;
    uint32_t n, n_shapes;  /* records or sums; shapes */
    struct hashed by_hash; /* of shapes */
    uint64_t last[RAN_COLUMNS];
    bool sites;  /* a record has one: its columns are written */
    bool failed; /* no memory */
};

/* One more. */
void ran_add(struct ran_writer *writer, const struct ran *ran);
void ran_add_sum(struct ran_writer *writer, const struct ran_sum *sum);

/* Bytes of the chunk so far. */
size_t ran_bytes(const struct ran_writer *writer);

/* The metadata of what was added, into the empty text @meta; the writer is empty again. Return: false without memory: all of it is lost. */
bool ran_meta(struct ran_writer *writer, struct text *meta);

/* Frees all. */
void ran_deinit(struct ran_writer *writer);

/* Records or sums of a chunk, one after the other. */
struct ran_reader {
    struct dmi_trace_head head;
    const uint8_t *shapes, *strings, *columns[RAN_COLUMNS], *end;
    uint64_t last[RAN_COLUMNS];
    uint32_t n_columns;
    uint32_t next; /* number of the one that comes next */
};

/* The records, or the sums, of @meta, of @n bytes, borrowed. Return: NULL; what is wrong with the chunk, in words. */
const char *ran_open(struct ran_reader *reader, const uint8_t *meta, uint64_t n);
const char *ran_open_sums(struct ran_reader *reader, const uint8_t *meta, uint64_t n);

/* The next one. Return: false: there is none, or *@wrong says what is wrong with it and those after it. */
bool ran_next(struct ran_reader *reader, struct ran *ran, const char **wrong);
bool ran_next_sum(struct ran_reader *reader, struct ran_sum *sum, const char **wrong);
