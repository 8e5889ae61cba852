/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-replay's command line. A program of one thread. */
#pragma once

#include "policy/spec.h"
#include "tools/replay/sink.h"
#include "tools/replay/source.h"

enum { REPLAY_OK = 0, REPLAY_FAILED = 1, REPLAY_USAGE = 2 };

struct replay_options {
    char **runs;
    int n_runs;
    struct source_wanted wanted;
    const char *to, *cursor;
    const struct sink_kind *kind;
    struct sink_options sink;
    double speed;     /* 0: as fast as it goes */
    unsigned at_once; /* commands */
    bool follow, json, consume;

    const char *policy;  /* a HookSpec whose overload is tried; NULL: records go to a sink */
    uint64_t link, ring; /* bytes a second; bytes, 0: the HookSpec's */
    const char *vars[SPEC_MAX_VARS];
    size_t n_vars;
};

/* Says on stderr what is wrong. Return: -1 to go on, else an exit status. */
int options_parse(int argc, char **argv, struct replay_options *out);

/* What is selected and where it goes, in words, for the cursor. Return: to be freed; NULL: no memory. */
char *options_choice(const struct replay_options *options);
