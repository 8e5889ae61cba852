/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A folder of samples that several runs, and several calls, add to: index.json says what all of its samples are (site,
 * layers, element type, ...) and has a line a sample: its number, file, run, request and tokens. The index is there before
 * the files that it names, so what it names and is not there was on its way when an export was killed: it is written anew.
 * A program of one thread.
 */
#pragma once

#include "core/err.h"
#include "read/value.h"
#include "storage/map.h"
#include "storage/text.h"
#include "tools/common/outfile.h"

#include <stdbool.h>

struct dataset_sample {
    char *file,
        *run; /* owned; the file's path in the folder, which may be that of other samples, too */
    char *request; /* owned; as it is shown; UTF-8 without NUL */
    uint64_t n_tokens;
};

struct dataset {
    json_t *facts; /* of all samples: owned; NULL: none are written */
    struct dataset_sample *all;
    size_t n, room;
    size_t n_kept; /* of these, those that are in the folder */
    struct map by_request, by_file;
    struct text *keys; /* private: of @by_request */
    int fd;            /* of the folder, locked; -1: it is not there */
};

/**
 * dataset_open() - what lies in a folder, which is locked against other exports
 * Return: 0; -EINVAL: it is no dataset; -EBUSY: another export goes on with it; -ENOMEM, -errno; with a sentence in @err.
 */
int dataset_open(struct err *err, struct dataset *dataset, const char *path);
/* Accepts one with fd -1 and zeros. */
void dataset_deinit(struct dataset *dataset);

/**
 * dataset_agree() - whether samples of these facts belong to the dataset
 * @facts: an object; taken over; NULL: no memory
 * Return: 0; -EINVAL: it holds samples of other ones; -ENOMEM; with a sentence in @err.
 */
int dataset_agree(struct err *err, struct dataset *dataset, const char *path, json_t *facts);

/* A sample that is in the folder. @request: as it is stored. Return: NULL: it is not there, or no memory. */
const struct dataset_sample *dataset_find(const struct dataset *dataset, const char *run,
                                          const char *request, size_t n_request);

/* A name for a file of one sample, with ~2 and so on if it is taken. Return: to be freed; NULL: no memory. */
char *dataset_name(const struct dataset *dataset, const char *base, const char *suffix);

/* Whether a sample lies in that file. */
bool dataset_has_file(const struct dataset *dataset, const char *file);

/* One more sample. Return: 0 or -ENOMEM. */
int dataset_add(struct dataset *dataset, const char *run, const char *request, size_t n_request,
                uint64_t n_tokens, const char *file);

/* Drops the samples that are not kept. Return: 0 or -ENOMEM. */
int dataset_rewind(struct dataset *dataset);

/* All samples are in the folder at @path. Return: as dataset_open(). */
int dataset_keep(struct err *err, struct dataset *dataset, const char *path);

/* Adds index.json. */
void dataset_add_text(struct text *to, const struct dataset *dataset);
