/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/choice.h"

#include "read/window.h"
#include "tools/common/say.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

bool choice_parse_range(const char *s, struct range *out)
{
    char *end;
    errno = 0;
    *out = (struct range){ 0, INT64_MAX };
    if (*s != ':') {
        out->first = strtoll(s, &end, 10);
        if (end == s || errno)
            return false;
        if (!*end) {
            out->end = out->first + 1;
            return out->first < INT64_MAX;
        }
        if (*end != ':')
            return false;
        s = end;
    }
    if (!s[1])
        return true;
    out->end = strtoll(s + 1, &end, 10);
    return end != s + 1 && !*end && !errno && out->end >= out->first;
}

bool choice_range(const char *option, const char *text, struct range *out)
{
    if (choice_parse_range(text, out))
        return true;
    complain("--%s: '%s' is neither a number nor a range A:B", option, text);
    return false;
}

bool choice_tokens(const char *text, struct selection *select)
{
    select->by_window = window_parse(text, strlen(text), &select->tokens, &select->window);
    if (select->by_window)
        return true;
    select->tokens = TOKENS_LAST;
    if (!strcmp(text, "last"))
        return true;
    select->tokens = TOKENS_RANGE;
    if (choice_parse_range(text, &select->positions))
        return true;
    complain("--tokens: '%s' is neither a position, a range A:B, prompt, response, a part of them "
             "(prompt[A:B], response[A:B]) nor last",
             text);
    return false;
}

/* One of "1", "tp=1". */
static bool take_rank(const char *word, size_t n, int32_t ranks[DMI_AXIS_COUNT])
{
    uint32_t axis = 0;
    char *end;
    const char *equals = memchr(word, '=', n);
    while (equals && axis < DMI_AXIS_COUNT &&
           (strlen(dmi_axis_name(axis)) != (size_t)(equals - word) ||
            memcmp(dmi_axis_name(axis), word, (size_t)(equals - word))))
        axis++;
    const char *number = equals ? equals + 1 : word;
    if (axis == DMI_AXIS_COUNT || *number < '0' || *number > '9')
        return false;
    unsigned long v = strtoul(number, &end, 10);
    ranks[axis] = (int32_t)v;
    return end == word + n && v <= INT32_MAX;
}

bool choice_ranks(const char *text, int32_t ranks[DMI_AXIS_COUNT])
{
    for (const char *at = text; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (!take_rank(at, strcspn(at, ","), ranks)) {
            complain("--rank: '%s' is neither a rank nor a list of tp=R, pp=R, dp=R, ep=R", text);
            return false;
        }
    return true;
}
