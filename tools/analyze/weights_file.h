/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention as a file, written as it is computed: safetensors with metadata (docs/analysis.md, "Files of answers"), or npy. It has its name
 * once all of it is there and may be given. A program of one thread.
 */
#pragma once

#include "core/err.h"
#include "tools/analyze/asked.h"
#include "tools/common/outfile.h"

struct weights_file {
    struct outfile place;
    bool is_npy;
    uint64_t n_header;   /* bytes before the arrays */
    uint64_t weights_at; /* of the weights, in the file */
    int32_t *layers;     /* owned */
    uint32_t *heads;     /* owned */
    size_t n_layers, n_heads;
    uint64_t n_queries, n_keys;
};

/* Chooses --output's place and opens it. Return: 0 or -errno with a sentence in @err; weights_file_deinit() in any case. */
int weights_file_begin(struct err *err, const struct analyze_options *options, struct asked *asked,
                       struct weights_file *out);

/* Writes weights. Return: 0 or -errno. */
int weights_file_add(struct weights_file *file, const struct dmi_analyze_rows *rows);

/* Once all are there: metadata, and the file's name. Return: as weights_file_begin(). */
int weights_file_end(struct err *err, const struct analyze_options *options, struct asked *asked,
                     struct weights_file *file);

/* Removes what did not get its name. Accepts a zeroed struct with place.fd -1. */
void weights_file_deinit(struct weights_file *file);
