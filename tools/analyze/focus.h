/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-analyze focus: what share of its attention the end of a prompt gives to an instruction, beside data. A program of one thread. */
#pragma once

#include "tools/analyze/asked.h"

#include <dmi/analyze_heads.h>
#include <jansson.h>

/* Return: an exit status. */
int analyze_focus(const struct analyze_options *options);

struct focus {
    const struct analyze_options *options;
    struct asked asked;
    json_t *spans;   /* of --spans */
    double *by_head; /* of the request that was computed last */
    int64_t n_heads;
    double score;
};

/* Says what is wrong with the command. Return: an exit status. */
int focus_usage(const char *what);

/* Opens run, spans and heads. What is wrong is said. Return: an exit status; focus_close() in any case. */
int focus_open(const struct analyze_options *options, struct focus *out);
void focus_close(struct focus *focus);

/**
 * focus_of() - one request's focus
 * Return: ANALYZE_OK; -1: its rows are not all there yet, as @why says; another exit status, and it is said.
 */
int focus_of(struct focus *focus, const struct dmi_read_request *request, char *why,
             uint64_t n_why);

/* dmi-analyze focus --find. Return: an exit status. */
int focus_find(struct focus *focus);
