/* SPDX-License-Identifier: Apache-2.0 */
/* What may have made turns slow: rows of suspects.def, by what they explain. A program of one thread. */
#pragma once

#include "tools/trace/why_lines.h"

/* What is known of slow turns and of usual ones. */
struct why_scene {
    const struct why_names *names;
    const struct why_parts *parts; /* of the slow ones, the sum of @turns */
    double turns;
    enum why_how how;
    const struct why_sum *usual;       /* of the same how; NULL: nothing to compare with */
    const struct dmi_step_times *step; /* the first of the slow ones */
    double launches, graphs, loads, allocations; /* of usual ones, a turn */
    double excess_ns;                            /* a turn */
};

/* Prints the most likely ones, as text. Return: the same as JSON, with all that explain something. */
json_t *why_suspects(struct report *report, const struct why_scene *scene);
