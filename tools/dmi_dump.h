/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of dmi-dump share. A program of one thread. */
#ifndef TOOLS_DMI_DUMP_H
#define TOOLS_DMI_DUMP_H

#include "storage/reader.h"
#include "storage/text.h"

#include <dmi/dmi.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { DUMP_OK = 0, DUMP_FAILED = 1, DUMP_USAGE = 2 };

struct range {
    int64_t first, end; /* end: behind the last; INT64_MAX: none */
};

struct options {
    const char *run;
    const char *site;    /* NULL: all */
    const char *request; /* NULL: all; for --against: the name of a run without step metadata */
    struct range layers, steps, forwards, rows;
    bool by_layer, by_step, by_forward, by_rows;
    bool json, all_values, records, tensors, requests;
    const char *against, *format, *output;
    double tolerance, row_tolerance;
};

/* Consecutive rows of one record that belong to one tensor. */
struct piece {
    size_t record; /* index for reader_record() */
    uint32_t first_row, n_rows;
    int64_t position; /* of the first row's token in its request, -1: not known */
};

/* What was captured under one name, for one layer and one request, over all forwards. */
struct tensor {
    char *key;           /* REQUEST/SITE.LAYER or SITE.LAYER; UTF-8, unique in a run */
    const char *name;    /* the part behind the request */
    const char *request; /* borrowed, not terminated; NULL: none */
    size_t n_request;
    const struct dmi_site *site; /* entry of the first record; others may share its name */
    uint32_t order;              /* id of the first entry of that name */
    int32_t layer;
    uint32_t dtype;
    uint32_t n_tail, tail[DMI_MAX_DIMS]; /* dimensions behind the rows */
    uint64_t width;                      /* their product */
    uint64_t n_rows;
    struct piece *pieces;
    size_t n_pieces, room;
    bool mixed; /* dtype or width changes: cannot be one tensor */
};

struct tensors {
    struct tensor *all; /* by request, site, layer */
    size_t n, room;
    uint64_t n_short;  /* records with fewer rows than their step says */
    uint64_t n_nobody; /* rows that belong to no request (padding) */
    bool by_request;   /* the run has step metadata */
};

/* A captured request that goes by another name in what it is compared with. */
struct alias {
    const char *id; /* NULL: none */
    size_t n_id;
    const char *name;
};

/**
 * tensors_build() - join records with steps and sites
 * @implied: request name for a run without step metadata, whose rows then get the positions that
 * follow from the rows of each forward; NULL: none, the positions are filled in all the same
 * @alias: NULL: none
 * Return: 0 or -ENOMEM.
 */
int tensors_build(const struct reader *reader, const char *implied, const struct alias *alias,
                  struct tensors *out);
void tensors_deinit(struct tensors *tensors);

/* What the engine said of one request, over all steps. */
struct request {
    const char *id; /* borrowed from the reader, not terminated */
    size_t n_id;
    uint64_t n_steps;
    uint64_t n_tokens[4]; /* by enum dmi_phase: computed, so with rows to capture */
    uint64_t n_cached;    /* taken over from a prefix cache: no rows of theirs were made */
    int64_t end;          /* behind the last position */
};

struct requests {
    struct request *all; /* in the order of their first steps */
    size_t n, room;
    uint64_t n_computed, n_cached; /* of all */
};

int requests_build(const struct reader *reader, struct requests *out);
void requests_deinit(struct requests *requests);
const struct request *requests_find(const struct requests *requests, const char *id, size_t n_id);
/* A table, or a member `requests` of @json. */
void requests_print(const struct requests *requests, struct text *json);
/* One sentence on stdout, if there are any. */
void requests_sentence(const struct requests *requests);

/* Bytes that a terminal would act on become '?': request ids and names are not ours. */
void put_safe(FILE *out, const char *s, size_t n);

/* Elements to doubles; any dtype of the format. */
void elements_to_double(uint32_t dtype, const void *data, size_t n, double *out);

/* "9x64" */
void print_shape(char *out, size_t n_out, const struct tensor *tensor);

/* Findings to stderr, or into @json. Return: how many are damage. */
size_t report_findings(const struct reader *reader, struct text *json);

int dump_export(struct reader *reader, const struct options *options);
int dump_compare(struct reader *reader, const struct options *options, struct text *json);

/* A safetensors file, mapped. Source: https://github.com/huggingface/safetensors, "Format". */
struct st_entry {
    char *key; /* owned */
    uint32_t dtype;
    uint32_t n_dims;
    uint64_t dims[8];
    const void *data;
    uint64_t n_bytes;
};

struct safetensors {
    void *map;
    size_t n_map;
    struct st_entry *entries; /* sorted by key */
    size_t n;
};

int safetensors_open(struct err *err, const char *path, struct safetensors *out);
void safetensors_deinit(struct safetensors *st);
const struct st_entry *safetensors_find(const struct safetensors *st, const char *key);

#endif
