/* SPDX-License-Identifier: Apache-2.0 */
/* Sites that are switched on and off while the program runs, by the names that people give them. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/**
 * switch_sites() - the capture of all sites whose names match, from the next launches on
 * @patterns: with blanks between them, each as of fnmatch(3)
 * @what: a person's words, which the run notes in any case, and on the disk; NULL: the program asks, perhaps at each step.
 *        Then the run notes what changes something, with the next commit.
 * The run notes a change before it takes effect.
 * Thread: any that entered. Return: the number of sites that match; -ENOSPC, -ENOMEM: the run has no room for the note, and
 * nothing has changed.
 */
int switch_sites(const char *patterns, bool on, const char *what);

/**
 * switch_knows() - whether each of the patterns matches a site of the spec
 * @why: gets the first that matches none, and the nearest name
 * Thread: any that entered; allocates.
 */
bool switch_knows(const char *patterns, char *why, size_t n_why);
