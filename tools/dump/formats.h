/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The formats of dmi-dump export. A format is one file, format_NAME.c, which defines format_NAME, and one line in
 * formats.def. It gets tensors in their final order and shape (export.h); where the output lies, what is damaged and
 * what happens on failure is the exporter's business. A program of one thread.
 */
#pragma once

#include "core/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct exporter;
struct target;

struct format {
    const char *name, *what; /* for --format and for --help */
    const char *suffix;      /* of the default output's name */
    bool is_folder;          /* the output is a folder of files */
    bool is_dataset;         /* several runs, and several calls, write one (dataset.h) */
    bool takes_names;        /* --names */
    bool takes_sites;        /* several --site; else one */
    bool takes_mask;         /* --loss-mask */
    bool takes_heads;        /* --queries, --head-dim, --multiplier */
    bool rows_alone; /* each row says what it is: tensors whose type changes are written, too */
    bool chooses;    /* --site and --layer are the format's: nothing is selected by them */
    /* Before anything is written: which targets it takes, in which order, and why others are left out
     * (export_leave_out()). NULL: all as they are. Return: 0 or -errno with a sentence in @err; -ENODATA: the run lacks
     * what its files hold. */
    int (*arrange)(struct err *err, struct exporter *x);
    /* Before the rows: sets the targets' offsets. Return: 0 or -errno with a sentence in @err. */
    int (*begin)(struct err *err, struct exporter *x);
    /* Rows of one target; @at: where they begin in it, in bytes. Return: 0 or -errno. */
    int (*write)(struct exporter *x, const struct target *t, const void *data, size_t n,
                 uint64_t at);
    /* After all rows. NULL: nothing to do. Return: as begin. */
    int (*finish)(struct err *err, struct exporter *x);
    /* In place of the four above: writes records as they are, so no tensors are built. NULL: the format is of tensors.
     * Return: as begin. */
    int (*copy)(struct err *err, struct exporter *x);
};

#define FORMAT(name) extern const struct format format_##name;
#include "tools/dump/formats.def"
#undef FORMAT

/* What `python -m dmi` writes: Arrow and Parquet files. */
#define FORMATS_ELSEWHERE "speculators, parquet"

/* The default first; NULL after the last. */
extern const struct format *const formats[];

/* @name: NULL: the default. Return: NULL: there is none of that name. */
const struct format *formats_find(const char *name);
