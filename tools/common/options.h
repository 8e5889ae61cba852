/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The options of a tool: one table. getopt_long()'s array, --help, and the check which command takes which option follow from it;
 * bash completes what --help says. --help, -h and --version are every tool's. A program of one thread.
 */
#pragma once

#include "tools/common/usage.h"

#include <getopt.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define OPTIONS_MOST        64 /* rows of a table */
#define OPTIONS_ROWS(array) .rows = array, .n_rows = sizeof array / sizeof *array

struct option_row {
    /* As --help has it: "--json", "--site NAME", "--output PATH, -o", "-D NAME=VALUE"; NULL: @help stands alone, a paragraph. */
    const char *shown;
    const char *help; /* lines; NULL: a spelling that --help leaves out */
    /* Takes optarg into the tool's struct. Return: -1 to go on, else the status to exit with. NULL: a row of --help alone. */
    int (*take)(const struct option_row *row, void *into);
    size_t at;            /* of the field that @take fills */
    const char *commands; /* words of those that take it; NULL: all do */
    uint32_t most;        /* of option_number() */
    bool optional;        /* its value may be left out: --word, or --word=VALUE */
};

struct options_table {
    const char *name;       /* of the tool */
    const char *before;     /* the options, in --help */
    const char *after;      /* them */
    void (*more)(FILE *to); /* prints what comes after that; NULL: nothing */
    int column;             /* where help begins on its line */
    bool stops;             /* at the first word that is no option */
    const struct option_row *rows;
    size_t n_rows;
};

/**
 * options_read() - take what the command line says
 * @into: the tool's struct; @given: gets a bit for each row that was given; may be NULL
 * optind is then the first word that is no option. Return: -1 to go on, else the status to exit with.
 */
int options_read(const struct options_table *table, int argc, char **argv, void *into,
                 uint64_t *given);

/* Whether a command takes all rows of @given; says of each that it does not. */
bool options_fit(const struct options_table *table, const char *command, uint64_t given);

/* --help. Return: 0 to stdout, USAGE_WRONG elsewhere. */
int options_help(const struct options_table *table, FILE *to);

/* The row's word, without "--"; good until the next call. */
const char *option_word(const struct option_row *row);

/* Return: -1 where @taken, else usage_hint(). */
int option_taken(bool taken);

/* Setters of fields that are a bool, a const char *, and a uint32_t from 1 to the row's @most. */
int option_flag(const struct option_row *row, void *into);
int option_text(const struct option_row *row, void *into);
int option_number(const struct option_row *row, void *into);

/* Where the field of @row is in @into. */
static inline void *option_field(const struct option_row *row, void *into)
{
    return (char *)into + row->at;
}
