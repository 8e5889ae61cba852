/* SPDX-License-Identifier: Apache-2.0 */
/* The edits that are in force from the first step on: checked, and put into memory for the library. One thread. */
#pragma once

#include "policy/spec.h"
#include "tools/run/holder.h"

#include <stdbool.h>

/* What the options say of edits. */
struct edits_options {
    const char *file;  /* --edits; NULL: none */
    const char *steer; /* --steer: a file of a vector that is added at a place */
    const char *times; /* with --steer; NULL: 1 */
    const char *site;  /* likewise: the place; NULL: the only one */
    const char *pass;  /* likewise: of its layers; NULL: each */
    char *layers;      /* likewise: owned; NULL: all that the vector has */
    bool
        lenient; /* where they cannot be done, the command runs without them, and ends as it does */
    char **command;     /* whose Python reads files of others: borrowed; NULL: python3 of PATH */
    struct edits *read; /* by edits_read() */
};

/* Do the options go together? Return: false: said why. */
bool edits_complete(const struct edits_options *options);

/* Is anything asked for? */
static inline bool edits_wanted(const struct edits_options *options)
{
    return options->file || options->steer;
}

/* Reads and checks them. @check: the number of edits is said. Return: false: said why. */
bool edits_read(struct edits_options *options, const struct spec *spec, bool check);

/* Starts what holds them for the processes of the command, and names it to these. @argv: as of holder_start(). Return: false: said why. */
bool edits_hold(const struct edits_options *options, struct holder *holder, char **argv);

/* Frees what was read. */
void edits_deinit(struct edits_options *options);
