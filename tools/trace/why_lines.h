/* SPDX-License-Identifier: Apache-2.0 */
/* Accounts of several turns together, and their lines, as text and as JSON. A program of one thread. */
#pragma once

#include "tools/common/report.h"
#include "tools/trace/why_account.h"

#include <stdbool.h>
#include <stddef.h>

/* Accounts of several turns. Accepts being zeroed, but for @how. */
struct why_sum {
    struct why_parts parts; /* sums over those that are like most of them */
    size_t how[HOWS];       /* how many there are */
};

/* What tells busy from idle in most of them. */
enum why_how why_sum_how(const struct why_sum *sum);

/* In a word. */
const char *why_how_words(enum why_how how);

/* Adds the account, which @sum->how counts, if it is like most of them. Return: false without memory. */
bool why_sum_add(struct why_sum *sum, const struct why_account *account);

/**
 * why_lines() - prints lines, as text
 * @parts: sums over @turns turns, which are reordered
 * @usual: accounts of the same @how, beside which they stand; NULL: they are the usual ones
 * Return: the same as JSON, with all that has no line as text.
 */
json_t *why_lines(struct report *report, const struct why_names *names, struct why_parts *parts,
                  double turns, enum why_how how, const struct why_sum *usual);
