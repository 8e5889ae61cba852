/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Answers as files: safetensors whose metadata says what they are and of which run. docs/analysis.md lays them out. A file gets its
 * name once all of it is written, and never lies in a run's folder. A program of one thread.
 */
#pragma once

#include "read/safetensors.h"
#include "tools/common/outfile.h"

#include <dmi/read.h>

struct result {
    struct outfile place;
    struct st_header header;
    uint64_t start; /* where the tensors' bytes begin in the file; result_end_header() sets it */
};

/* Checks the place. @path: where to. Return: 0 or -errno with a sentence in @err; result_deinit() in any case. */
int result_open(struct err *err, struct result *result, const char *path, bool force,
                struct dmi_read *run);
/* Discards what was not kept. */
void result_deinit(struct result *result);

/*
 * What every result says: "what", "formula", the run's uuid, "parameters" (taken over), no checks, the tool's version. Strings alone may be
 * added. Return: NULL: no memory.
 */
json_t *result_metadata(const char *what, const char *formula, struct dmi_read *run,
                        json_t *parameters);

/* Adds @value as JSON text, and drops it. */
void result_say(json_t *metadata, const char *key, json_t *value);

/* Adds "edits": which edits wrote in the request, or (of_all) in any. Nothing where none did. */
void result_say_edits(json_t *metadata, struct dmi_read *run, const char *id, uint64_t n_id);
void result_say_edits_of_all(json_t *metadata, struct dmi_read *run);

/**
 * result_begin() - before any tensor is added
 * @metadata: taken over; NULL: no memory
 */
int result_begin(struct err *err, struct result *result, json_t *metadata);

/* Adds a tensor of f64 or i64. Return: its offset for result_write(). */
uint64_t result_add(struct result *result, const char *key, uint32_t dtype, const uint64_t *dims,
                    uint32_t n_dims);

/* After the last tensor. Return: 0 or -errno with a sentence in @err. */
int result_end_header(struct err *err, struct result *result);
/* Bytes at an offset that result_add() gave, and further. Return: as above. */
int result_write(struct err *err, struct result *result, const void *data, size_t n, uint64_t at);
/* The file gets its name. Return: as above. */
int result_keep(struct err *err, struct result *result);
