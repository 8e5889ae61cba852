/* SPDX-License-Identifier: Apache-2.0 */
/* The options that choose a part of a run, as every tool spells them. A program of one thread. */
#ifndef TOOLS_COMMON_CHOICE_H
#define TOOLS_COMMON_CHOICE_H

#include "read/tensors.h"

#include <dmi/site.h>

#include <stdbool.h>

/* "N" or "A:B", either of which may be left out. Return: false: it is neither, and nothing is said. */
bool choice_parse_range(const char *text, struct range *out);

/**
 * choice_range() - "N" or "A:B", either of which may be left out
 * @option: its name, for what is said of @text on stderr
 * Return: false: it is neither.
 */
bool choice_range(const char *option, const char *text, struct range *out);

/* Of --tokens: sets the selection's kind and positions. Return: as choice_range(). */
bool choice_tokens(const char *text, struct selection *select);

/* Of --rank: sets the axes that it names, or tp. Return: as choice_range(). */
bool choice_ranks(const char *text, int32_t ranks[DMI_AXIS_COUNT]);

#endif
