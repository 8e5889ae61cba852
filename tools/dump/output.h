/* SPDX-License-Identifier: Apache-2.0 */
/* What dmi-dump prints has cells and exit statuses of its own. Nothing else in tools/dump writes to stdout or stderr. A program of one thread. */
#pragma once

#include "tools/common/report.h"

enum { DUMP_OK = 0, DUMP_FAILED = 1, DUMP_USAGE = REPORT_IMPOSSIBLE };

/* How a column shows bytes, an error, a cosine. Null stands for what is no number in JSON. */
void value_of_bytes(struct text *to, const json_t *value);
void value_of_error(struct text *to, const json_t *value);
void value_of_cosine(struct text *to, const json_t *value);
