/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/element.h"

#include <dmi/dtype.h>

#include <inttypes.h>
#include <math.h>
#include <string.h>

static void add_real(struct text *to, double v)
{
    if (v == 0 && signbit(v))
        text_add(to, "-0.0", 4); /* -0 would be an integer, which has no sign */
    else if (isfinite(v))
        text_json_double(to, v);
    else
        text_printf(to, isnan(v) ? "\"NaN\"" : v < 0 ? "\"-Infinity\"" : "\"Infinity\"");
}

void element_add_json(struct text *to, uint32_t dtype, const uint8_t *at, double v)
{
    uint64_t bits;
    if (dtype != DMI_DTYPE_I64 && dtype != DMI_DTYPE_U64) {
        add_real(to, v);
        return;
    }
    memcpy(&bits, at, sizeof bits);
    if (dtype == DMI_DTYPE_I64)
        text_printf(to, "%" PRId64, (int64_t)bits);
    else
        text_printf(to, "%" PRIu64, bits);
}
