/* SPDX-License-Identifier: Apache-2.0 */
/* The options that choose a part of a run, as every tool spells them. A program of one thread. */
#pragma once

#include "read/selection.h"
#include "tools/common/options.h"

#include <dmi/site.h>

#include <stdbool.h>

/* Each adds to what the option said before, and says on stderr what is wrong with @text. Return: false: it is wrong. */
bool choice_name(const char *text, struct selection_names *names);
/* Numbers from 0 on, or (@from_end) rows that may be counted from the end; @option: its name. */
bool choice_numbers(const char *option, const char *text, bool from_end, struct slices *slices);

/* Of --rank: sets the axes that it names, or tp; an axis has one rank. Return: as choice_name(). */
bool choice_ranks(const char *text, int32_t ranks[DMI_AXIS_COUNT]);

/* As setters of rows, of names, layers, tokens and numbers: into a struct selection_names, a struct selection, one again, and a struct slices from 0 on. */
int choice_take_name(const struct option_row *row, void *into);
int choice_take_layers(const struct option_row *row, void *into);
int choice_take_tokens(const struct option_row *row, void *into);
int choice_take_numbers(const struct option_row *row, void *into);
