/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/choice.h"

#include "tools/common/say.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Return: whether it is 0; else the sentence is said. */
static bool is_good(const struct err *err, int r)
{
    if (r)
        complain("%s", err->msg);
    return !r;
}

bool choice_name(const char *text, struct selection_names *names)
{
    struct err err = { 0 };
    int r = selection_add_name(names, text, strlen(text));
    return is_good(&err, r ? err_set_errno(&err, -r, "'%s'", text) : 0);
}

static bool choice_layers(const char *text, struct selection *select)
{
    struct err err = { 0 };
    return is_good(&err, selection_add_layers(&err, "--layers", text, select));
}

static bool choice_tokens(const char *text, struct selection *select)
{
    struct err err = { 0 };
    return is_good(&err, selection_add_tokens(&err, "--tokens", text, select));
}

bool choice_numbers(const char *option, const char *text, bool from_end, struct slices *slices)
{
    struct err err = { 0 };
    char what[32];
    snprintf(what, sizeof what, "--%s", option);
    return is_good(&err, slices_add(&err, what, text, from_end, slices));
}

/* One of "1", "tp=1". */
static bool take_rank(const char *word, size_t n, int32_t ranks[DMI_AXIS_COUNT], bool *twice)
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
    if (end != word + n || v > INT32_MAX)
        return false;
    *twice |= ranks[axis] >= 0 && ranks[axis] != (int32_t)v;
    ranks[axis] = (int32_t)v;
    return true;
}

bool choice_ranks(const char *text, int32_t ranks[DMI_AXIS_COUNT])
{
    bool twice = false;
    for (const char *at = text; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (!take_rank(at, strcspn(at, ","), ranks, &twice)) {
            complain("--rank: '%s' is neither a rank nor a list of tp=R, pp=R, dp=R, ep=R", text);
            return false;
        }
    if (twice)
        complain("--rank: '%s': one axis has two ranks, of which no run has both", text);
    return !twice;
}

int choice_take_name(const struct option_row *row, void *into)
{
    return option_taken(choice_name(optarg, option_field(row, into)));
}

int choice_take_layers(const struct option_row *row, void *into)
{
    return option_taken(choice_layers(optarg, option_field(row, into)));
}

int choice_take_tokens(const struct option_row *row, void *into)
{
    return option_taken(choice_tokens(optarg, option_field(row, into)));
}

int choice_take_numbers(const struct option_row *row, void *into)
{
    return option_taken(choice_numbers(option_word(row), optarg, false, option_field(row, into)));
}
