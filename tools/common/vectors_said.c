/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/vectors_said.h"

#include <ctype.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define N(list) (sizeof(list) / sizeof *(list))

/* The first N_FACTORS leave numbers as they are where they say 1, the next N_SUMMANDS where they say 0. */
enum { N_FACTORS = 7, N_SUMMANDS = 3 };
static const char *const bearing[] = {
    "scal",   "coef",   "alpha",     "strength",  "mult", "factor", "gain",      "shift",
    "offset", "bias",   "layer",     "site",      "hook", "block",  "head",      "index",
    "norm",   "center", "centre",    "centering", "mean", "avg",    "thresh",    "project",
    "ablat",  "orthog", "operation", "mode",      "sign", "apply",  "transform", "interven",
};
static const char *const neutral[] = { "", "none", "null", "false", "no", "off" };

static bool is_neutral_text(const char *value)
{
    for (size_t i = 0; i < N(neutral); i++)
        if (!strcasecmp(value, neutral[i]))
            return true;
    return false;
}

bool said_bears(const char *key, const char *value)
{
    bool factor = false, summand = false, any = false;
    for (size_t i = 0; i < N(bearing); i++)
        if (strcasestr(key, bearing[i])) {
            any = true;
            factor = factor || i < N_FACTORS;
            summand = summand || (i >= N_FACTORS && i < N_FACTORS + N_SUMMANDS);
        }
    if (!any || (value && is_neutral_text(value)))
        return false;
    char *end = NULL;
    double number = value ? strtod(value, &end) : 0;
    if (!value || end == value || *end)
        return true;
    return factor ? number != 1 : summand ? number != 0 : true;
}
