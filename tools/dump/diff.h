/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of dmi-dump diff and verify --against share. A program of one thread. */
#pragma once

#include "tools/common/differ.h"
#include "tools/dump/dump.h"

/* Of runs whose edits differ: where they changed something first, and what they should have reached and did not. Return: an exit status. */
int diff_edits(const struct differ *differ, struct report *report);

/* Return: an exit status. */
int diff_report(const struct differ *differ, struct report *report);
/* Compares a run with the reference of this name, and prints where they differ. Return: an exit status. */
int diff_reference_report(const struct differ *differ, const char *reference,
                          struct report *report);

/* What only the run or only the reference has. Return: 0 or -ENOMEM. */
int compare_names(const struct differ *differ, struct report *report);
