/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-run's options for those who name tensors by taps instead of a HookSpec. One thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* As given; NULL: not given. */
struct taps_options {
    const char *preset;   /* borrowed */
    char *names, *layers; /* owned: all that the options said, separated by commas */
    char *attach;         /* likewise: what dmi.torch.attach() is to tap in a program in Python */
    char *
        write; /* likewise: into which of the taps edits may write; without @names and @preset they are attached, too */
    char *model; /* likewise: patterns of the models that are attached; NULL: all */
    char *
        all; /* every tap that is to be stored, separated by commas; owned. NULL: a HookSpec says it */
};

/* Adds what an option said to what it said before. Return: false without memory. */
bool taps_add(char **list, const char *more);

/**
 * taps_complete() - what the options come to
 * @has_spec: there is a HookSpec, which says what is stored
 * Return: false if they cannot be, which is said.
 */
bool taps_complete(struct taps_options *taps, bool has_spec);

/* Are there taps in place of a HookSpec? */
static inline bool taps_named(const struct taps_options *taps)
{
    return taps->all || taps->write;
}

/* Sets the variables by which the library and Python learn of it. Return: false: said why. */
bool taps_set(const struct taps_options *taps);

/* Frees what it owns. */
void taps_deinit(struct taps_options *taps);
