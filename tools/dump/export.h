/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What dmi-dump export and its formats share. A format is one file, format_NAME.c, which defines format_NAME, and one
 * line in formats.def. It gets tensors in their final order and shape; where the output lies, what is damaged and
 * what happens on failure is the exporter's business. A program of one thread.
 */
#ifndef TOOLS_DUMP_EXPORT_H
#define TOOLS_DUMP_EXPORT_H

#include "tools/dump/dump.h"

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
    size_t positions; /* index of its list */
    uint64_t offset;  /* of its first byte in its file: the format's */
    char *file;       /* its file in the folder: the format's; owned; NULL where all is one file */
};

struct exporter {
    struct reader *reader;
    const struct tensors *tensors;
    struct target *targets;
    size_t n_targets;
    struct position_list *positions;
    size_t n_positions;
    uint64_t n_bytes;   /* of all */
    const char *output; /* as it will be called */
    int fd; /* of the file, or of the folder, that is written: still under another name */
};

struct format {
    const char *name, *what; /* for --format and for --help */
    const char *suffix;      /* of the default output's name */
    bool is_folder;    /* the output is a folder of files, each with a target's name or in @extra */
    const char *extra; /* a file that it writes beside those, NULL: none */
    /* Before the rows: sets the targets' offsets. Return: 0 or -errno with a sentence in @err. */
    int (*begin)(struct err *err, struct exporter *x);
    /* Rows of one target; @at: where they begin in it, in bytes. Return: 0 or -errno. */
    int (*write)(struct exporter *x, const struct target *t, const void *data, size_t n,
                 uint64_t at);
    /* After all rows. NULL: nothing to do. */
    int (*finish)(struct err *err, struct exporter *x);
};

#define FORMAT(name) extern const struct format format_##name;
#include "tools/dump/formats.def"
#undef FORMAT

/* Writes all of @data at an offset of a file. Return: 0 or -errno. */
int export_write(int fd, const void *data, size_t n, uint64_t at);

/* What whoever reads the output must know of a tensor: an object. NULL: no memory. */
json_t *export_facts(const struct target *t);

/* Collects the targets' positions, each list once. Return: 0 or -ENOMEM. */
int export_collect_positions(struct exporter *x);
void export_drop_positions(struct exporter *x);

/* Adds the lists, a JSON array: [[[first, rows], ...], ...]. */
void export_add_positions(struct text *to, const struct exporter *x);

/* The formats by name, for --help; NULL after the last. */
extern const struct format *const export_formats[];

#endif
