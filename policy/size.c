/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/size.h"

#include "policy/spec_load.h"

#include <string.h>

bool size_parse(const char *text, size_t n_text, uint64_t *out)
{
    char number[32];
    int64_t v;
    if (!n_text || n_text >= sizeof number)
        return false;
    memcpy(number, text, n_text);
    number[n_text] = 0;
    char *last = &number[n_text - 1];
    unsigned shift = *last == 'K' ? 10 : *last == 'M' ? 20 : *last == 'G' ? 30 : 0;
    if (shift)
        *last = 0;
    if (number[0] == '-' || !parse_integer(number, &v) || v > INT64_MAX >> shift)
        return false;
    *out = (uint64_t)v << shift;
    return true;
}
