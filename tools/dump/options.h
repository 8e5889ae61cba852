/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-dump's command line. A program of one thread. */
#pragma once

#include "read/selection.h"

#include <stdbool.h>

struct reader;
struct dump_options;

struct dump_command {
    const char *name;
    int (*run)(struct reader *reader,
               const struct dump_options *options); /* Return: the exit status */
    bool takes_site;
    bool selects;       /* reads only what its selection needs */
    bool takes_other;   /* a second run */
    bool takes_several; /* runs */
    bool by_itself;     /* selects by itself */
    bool aliases;       /* --request ID=NAME, which it looks up by itself */
    bool reads_all;     /* of the run, once */
};

struct dump_options {
    const struct dump_command *command;
    const char *run, *other;
    char **runs; /* those of a command that takes several: the first is @run */
    size_t n_runs;
    const char *from;       /* an address, in the place of @run; NULL: none */
    uint64_t n_not_fetched; /* what of it was left out */
    struct selection select;
    struct slices steps, forwards, rows;
    bool json, all_values, list_runs, records, tensors, requests, force, append, map, edits;
    bool by_rank;
    int32_t ranks[DMI_AXIS_COUNT]; /* -1: any */
    const char *against, *format, *output;
    const char *edits_to; /* edits --export */
    const char *names;
    const char *loss_mask; /* a file */
    bool last_queries;     /* --queries last */
    uint32_t head_dim;     /* 0: as captured */
    double multiplier;     /* of attention; 0: that of the size of a head */
    bool by_heads;         /* one of these was given */
    struct selection own;  /* sites and layers, for a format that chooses by itself */
    double tolerance, row_tolerance;
};

/**
 * options_parse() - the command and its options
 * @commands: ends with a row without a name
 * Says on stderr what is wrong. Return: -1 to go on, else an exit status.
 */
int options_parse(int argc, char **argv, const struct dump_command *commands,
                  struct dump_options *out);
/* Frees what the options own. */
void options_deinit(struct dump_options *options);
