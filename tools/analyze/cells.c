/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/analyze/cells.h"

#include <math.h>

double cell_value(const json_t *row, const char *outer, const char *inner)
{
    const json_t *v = json_object_get(row, outer);
    v = inner ? json_object_get(v, inner) : v;
    return json_is_number(v) ? json_number_value(v) : NAN;
}

void cell_number(struct text *to, double v)
{
    if (!isfinite(v))
        text_printf(to, "-");
    else if (v == floor(v) && fabs(v) < 1e6)
        text_printf(to, "%.0f", v);
    else
        text_printf(to, "%.4g", v);
}

void cell_share(struct text *to, double share)
{
    if (!isfinite(share))
        text_printf(to, "-");
    else if (share == 0 || share >= 0.001)
        text_printf(to, "%.1f%%", 100 * share);
    else
        text_printf(to, "%.0e", share);
}
