/* SPDX-License-Identifier: Apache-2.0 */
/* What dmi-dump export hands to its formats (formats.h). A program of one thread. */
#pragma once

#include "tools/common/outfile.h"
#include "tools/common/statistics.h"
#include "read/edited.h"
#include "read/mask.h"
#include "read/sample.h"
#include "tools/dump/dump.h"
#include "tools/dump/formats.h"

/* Positions of rows, as pairs of a first position and a number of rows; -1: not known. Many tensors share one list. */
struct position_list {
    struct position_pair {
        int64_t first;
        uint64_t n;
    } * pairs;
    size_t n, room;
};

/* A tensor that is exported. */
struct target {
    const struct tensor *tensor;
    uint64_t n_bytes;
    size_t positions;       /* index of its list */
    struct statistics sums; /* the format's */
    uint64_t offset;        /* of its first byte in its file: the format's */
    uint64_t stride;        /* from row to row there: the format's */
    char *file; /* its file in the folder: the format's; owned; NULL where all is one file */
};

struct dataset;

struct exporter {
    struct reader *reader;
    const struct tensors *tensors;
    struct target *targets;
    size_t n_targets;
    struct position_list *positions;
    size_t n_positions;
    size_t n_group;       /* targets in a row that make up one file: the format's */
    uint64_t n_bytes;     /* of all */
    struct text left_out; /* sentences, one a line: export_leave_out() */
    uint64_t n_left_out;
    uint64_t left_out_by[SAMPLE_N_FAULTS];
    struct requests requests;           /* where the format chooses, or edits wrote */
    struct edited_all edited;           /* what edits wrote in them */
    const struct masks *masks;          /* NULL: none were given */
    struct dataset *dataset;            /* of a format that is one */
    uint64_t n_already;                 /* samples that the dataset has */
    uint64_t n_without_loss;            /* samples whose mask is 0 throughout */
    uint64_t n_files;                   /* written by copy() */
    uint64_t n_damaged, n_missing;      /* records that copy() could not decode; rows of theirs */
    const struct stretch *stretch;      /* during write(): whose rows they are */
    const struct reader_record *record; /* likewise: of which record */
    uint64_t at; /* bytes written, where they follow one another: the format's */
    int scratch; /* a file without a name: the format's; -1: none */
    const struct dump_options *options;
    const char *output; /* as it will be called */
    int fd; /* of the file, or of the folder, that is written: still under another name */
};

/* Sites that a format which chooses by itself is to take, in their order. */
size_t export_n_sites(const struct dump_options *options);
/* Return: NULL: there is no such one. */
const char *export_site(const struct dump_options *options, size_t i);

/* Says, once the export has ended well or not, that something is left out: the exit status is then 1. */
void export_leave_out(struct exporter *x, enum sample_fault why, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/**
 * export_file_name() - a file name of a key or a request
 * What could mean something to a file system becomes %XX, nothing at all '%', and a long name ends in a hash.
 * Return: NULL: no memory.
 */
char *export_file_name(const char *key, size_t n_key, const char *suffix);

/* Adds a target's list of positions, a JSON array: [[first, rows], ...]. */
void export_add_position_list(struct text *to, const struct position_list *list);

/* Whether both are of one request, or neither is of any. */
bool export_same_request(const struct tensor *a, const struct tensor *b);

/* What whoever reads the output must know of a tensor: an object. NULL: no memory. */
json_t *export_facts(const struct exporter *x, const struct target *t);

/* The id of the request that rows were computed for, where that is another one. */
json_t *export_donor(const struct exporter *x, const struct stretch *stretch);
/* Rows that are another request's, [[index, rows, its id], ...]; NULL: there are none. */
json_t *export_donors(const struct exporter *x, const struct tensor *tensor);
/* The same of @n targets of one request: {name: list}; NULL: there are none. */
json_t *export_donors_of(const struct exporter *x, const struct target *targets, size_t n);
/* Rows of targets that are other requests'. @out: gets the ids of these, a list for each request that has such rows. */
uint64_t export_filled(const struct exporter *x, json_t *out);
/* What edits wrote in the tensor's request, in words, an array; NULL: none did. */
json_t *export_edits(const struct exporter *x, const struct tensor *tensor);
/* The names of those that wrote rows of the tensor itself; NULL: none did. */
json_t *export_edited_by(const struct exporter *x, const struct tensor *tensor);
/* @out: gets export_edits() of each request that is exported, by its id. */
void export_edited(const struct exporter *x, json_t *out);
/* Groups of x->n_group targets that have such rows. */
size_t export_n_filled(const struct exporter *x);

/* Collects the targets' positions, each list once. Return: 0 or -ENOMEM. */
int export_collect_positions(struct exporter *x);
void export_drop_positions(struct exporter *x);

/* Which tokens of each request are wanted, as --tokens says it: "all", "response[0:16]". */
void export_add_tokens(struct text *to, const struct selection *select);
/* The same as a string. NULL: no memory. */
json_t *export_tokens(const struct selection *select);

/* Adds index.json of npy files: keys, the files that hold them, what is known of each. */
void export_index(struct text *to, const struct exporter *x);
/* Writes index.json of a dataset. Return: 0 or -errno with a sentence in @err. */
int export_dataset_index(struct err *err, struct exporter *x);
/* Says on stderr that element types are stored as bits, if any is. */
void export_complain_of_bits(const struct exporter *x);

/* Adds the lists, a JSON array: [[[first, rows], ...], ...]. */
void export_add_positions(struct text *to, const struct exporter *x);
