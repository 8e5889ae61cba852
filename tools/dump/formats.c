/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/dump/formats.h"

#include <string.h>

const struct format *const formats[] = {
#define FORMAT(name) &format_##name,
#include "tools/dump/formats.def"
#undef FORMAT
    NULL,
};

const struct format *formats_find(const char *name)
{
    for (size_t i = 0; formats[i]; i++)
        if (!name || !strcmp(name, formats[i]->name))
            return formats[i];
    return NULL;
}
