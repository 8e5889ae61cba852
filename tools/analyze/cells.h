/* SPDX-License-Identifier: Apache-2.0 */
/* How columns of tables show numbers. A program of one thread. */
#pragma once

#include "tools/common/report.h"

/* Four digits that count, whole numbers whole; "-" for what is no number. */
void value_of_number(struct text *to, const json_t *value);

/* "12.5%"; of less than a thousandth its power of ten: a share that is not 0 never looks like 0. "-" as above. */
void value_of_share(struct text *to, const json_t *value);
