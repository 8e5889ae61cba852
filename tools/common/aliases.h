/* SPDX-License-Identifier: Apache-2.0 */
/* --request ID=NAME: request ID of the run, which the other side calls NAME. A program of one thread. */
#pragma once

#include "read/tensors.h"

/* Of all --request, in their order. */
struct aliases {
    struct selection_names ids, names; /* as the run and the other side call them */
    struct alias *all;                 /* those whose name is another one */
    size_t n;
};

/* Return: 0 or -ENOMEM. */
int aliases_of(const struct selection_names *requests, struct aliases *out);
/* Accepts a zeroed struct. */
void aliases_deinit(struct aliases *aliases);

/* What a run is called whose engine named no requests: the only name. NULL: none or several. */
const char *aliases_implied(const struct aliases *aliases);
