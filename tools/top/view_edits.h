/* SPDX-License-Identifier: Apache-2.0 */
/* Edits of a run in its view. A program of one thread. */
#pragma once

#include "tools/top/view.h"

/* Adds what the file `edits` of the run says, by name; nothing where there is none. Return: 0 or -ENOMEM. */
int view_add_edits(struct top_view *view, const struct top_run *run);
