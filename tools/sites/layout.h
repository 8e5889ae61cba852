/* SPDX-License-Identifier: Apache-2.0 */
/* How a tensor lies in memory: rows, in order or in slots that a list names, each in chunks (heads) that are packed. One thread. */
#pragma once

#include "tools/sites/probe.h"

struct layout {
    uint32_t dtype;
    float scale;
    uint64_t address;    /* of the first row, or of slot 0 */
    int64_t row_stride;  /* bytes; 0 where there is one row */
    uint64_t list;       /* address of a number for each row: the slot that it is in */
    uint32_t list_dtype; /* i32 or i64; 0: there is none, row i lies at i */
    uint32_t chunk;      /* elements that lie side by side */
    uint32_t n_chunks;
    int64_t chunk_stride; /* bytes; 0 where there is one chunk */
};

/* What is compared: rows of a site's layer, and when. */
struct subject {
    uint32_t site;
    int layer;
    const uint32_t *rows;
    uint32_t n_rows;
    uint64_t time;
};

/* The number of slot that the list at @address says for row @index. Return: -1 where the recording does not know, or it is below 0. */
int64_t layout_slot(const struct probe *probe, uint64_t list, uint32_t dtype, uint32_t index,
                    uint64_t time);

/* The first @width values of row number @index. Return: false where the recording does not say what memory held. */
bool layout_row(const struct probe *probe, const struct layout *layout, uint32_t index,
                uint32_t width, uint64_t time, double *out);

/* The error at which a row of @site is still that row, in @dtype: norm over norm. */
float layout_row_limit(const struct probe *probe, uint32_t site, uint32_t dtype);

/**
 * layout_error() - how far memory is from the reference: norm over norm
 * Return: INFINITY where one row is beyond layout_row_limit(), or the recording does not say what memory held.
 */
float layout_error(const struct probe *probe, const struct layout *layout,
                   const struct subject *subject);

/* The same of the first 16 values of each row. */
float layout_prefix_error(const struct probe *probe, const struct layout *layout,
                          const struct subject *subject);

/**
 * layout_find_chunks() - how a row goes on after its beginning
 * @layout: its address, row_stride, dtype and scale are given, the others are set
 * @base, @n_bytes: the allocation
 * Return: whether all rows of @subject are there.
 */
bool layout_find_chunks(const struct probe *probe, struct layout *layout,
                        const struct subject *subject, uint64_t base, uint64_t n_bytes);
