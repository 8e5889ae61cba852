/* SPDX-License-Identifier: Apache-2.0 */
/* What dmi-analyze was asked for. A program of one thread. */
#pragma once

#include "read/selection.h"

#include <dmi/analyze.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    ANALYZE_OK = 0,
    ANALYZE_FAILED = 1,
    ANALYZE_USAGE = 2,
    ANALYZE_BELOW = 3,
    ANALYZE_REFUSED = 4
};

struct analyze_options;

/* A question that the tool answers. */
struct analyze_command {
    const char *name;
    int (*run)(const struct analyze_options *options); /* Return: an exit status */
    bool by_file;                                      /* --heads names a file */
    bool selects; /* its rows are those of --site, --layers and --tokens */
};

#define OPTIONS_MOST_SITES 64

/* A line of stats. */
enum by { BY_LAYER, BY_TOKEN, BY_CHANNEL };

struct analyze_options {
    const struct analyze_command *command;
    const char *run;        /* a folder or a file */
    const char *request;    /* NULL: the only one */
    const char *layers;     /* words; NULL: all */
    const char *tokens;     /* words: queries; NULL: all */
    const char *config;     /* NULL: what the run says */
    const char *prefix;     /* RUN or RUN:ID; NULL: none */
    struct slices heads;    /* numbers; none: all */
    const char *heads_file; /* of commands that take a list of heads; NULL: none */
    const char *tokenizer;  /* NULL: none was named */
    const char *spans, *passages, *query, *null, *plain,
        *injected;       /* files and requests; NULL: not said */
    uint32_t measure;    /* enum dmi_analyze_measure */
    double below, times; /* --below, -1: not said; --times */
    int32_t ranks[4];    /* by axis, -1: any */
    struct dmi_analyze_sites sites;
    double multiplier; /* 0: not said */
    uint64_t n_memory; /* bytes; 0: not said */
    uint32_t n_threads;
    uint32_t rope_order;                            /* enum dmi_analyze_order */
    uint32_t n_top;                                 /* entries of a list */
    struct dmi_read_name names[OPTIONS_MOST_SITES]; /* --site */
    uint64_t n_names;
    enum by by;
    const char *output;                 /* a file; NULL: none */
    uint32_t n_experts, top_k;          /* 0: not said */
    const char *ids, *weights, *logits; /* sites; NULL: DMI's own names */
    bool json, unchecked, fill_cached, map, skip_first, force, exclude_bos, exclude_current, follow,
        find, all_heads;
};

/**
 * options_parse() - the command line
 * @commands: the last one has no name
 * Return: -1 to go on, else an exit status; what is wrong is said.
 */
int options_parse(int argc, char **argv, const struct analyze_command *commands,
                  struct analyze_options *out);
