/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/dump/formats.h"

const struct format *const formats[] = {
#define FORMAT(name) &format_##name,
#include "tools/dump/formats.def"
#undef FORMAT
    NULL,
};
