/* SPDX-License-Identifier: Apache-2.0 */
/* --request of an export of several runs: each id must be that of a request in one of them. A program of one thread. */
#pragma once

#include "read/requests.h"
#include "read/selection.h"

/* Which of the selection's ids were found. */
struct export_met {
    bool *all;
};

/* Notes those of a run. @none: gets whether it has none of them. Return: 0 or -ENOMEM. */
int export_met_note(struct export_met *met, const struct selection *select,
                    const struct requests *requests, bool *none);

/* Says on stderr which of them no run has. Return: whether there are any. */
bool export_met_complain(const struct export_met *met, const struct selection *select);

/* Accepts a zeroed struct. */
void export_met_deinit(struct export_met *met);
