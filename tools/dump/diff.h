/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of dmi-dump diff share. A program of one thread. */
#ifndef TOOLS_DUMP_DIFF_H
#define TOOLS_DUMP_DIFF_H

#include "tools/common/differ.h"
#include "tools/dump/dump.h"

/* Of runs whose edits differ: where they changed something first, and what they should have reached and did not. Return: an exit status. */
int diff_edits(const struct differ *differ, struct report *report);

/* Return: an exit status. */
int diff_report(const struct differ *differ, struct report *report);

#endif
