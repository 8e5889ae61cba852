/* SPDX-License-Identifier: Apache-2.0 */
/* What dmi-dump prints has cells and exit statuses of its own. Nothing else in tools/dump writes to stdout or stderr. A program of one thread. */
#ifndef TOOLS_DUMP_OUTPUT_H
#define TOOLS_DUMP_OUTPUT_H

#include "tools/common/report.h"

enum { DUMP_OK = 0, DUMP_FAILED = 1, DUMP_USAGE = REPORT_IMPOSSIBLE };

/* The cells of members "raw_bytes" and "stored_bytes". */
void cell_raw_bytes(struct text *to, const json_t *row);
void cell_stored_bytes(struct text *to, const json_t *row);
/* An error, or (@cosine) a cosine; @none where the member is null, which stands for what is no number in JSON. */
void cell_double(struct text *to, const json_t *row, const char *key, const char *none,
                 bool cosine);

#endif
