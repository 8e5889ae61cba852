/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/analyze/cells.h"

#include <math.h>

static double number_of(const json_t *v)
{
    return json_is_number(v) ? json_number_value(v) : NAN;
}

void value_of_number(struct text *to, const json_t *value)
{
    double v = number_of(value);
    if (!isfinite(v))
        text_printf(to, "-");
    else if (v == floor(v) && fabs(v) < 1e6)
        text_printf(to, "%.0f", v);
    else
        text_printf(to, "%.4g", v);
}

void value_of_share(struct text *to, const json_t *value)
{
    double share = number_of(value);
    if (!isfinite(share))
        text_printf(to, "-");
    else if (share == 0 || share >= 0.001)
        text_printf(to, "%.1f%%", 100 * share);
    else
        text_printf(to, "%.0e", share);
}
