/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commands about edits, and their answers, as of control/command.h:
 *
 *     edit add                      the edits in the descriptor that came with the line: a memfd, sealed, as edits_pack() makes it
 *     edit check                    all that add would find wrong, without effect
 *     edit set NAME times=NUMBER    another coefficient for its operations
 *     edit on|off NAME
 *     edit remove NAME
 *     edit list                     what is in force, and what became of its rows
 *     edit salt ID [TAGS]           what the tag `cache_salt` of such a request is to hold
 *     bank list                     the requests of which edits have saved rows
 *     bank drop NAME                rows that were saved under the name are forgotten
 *
 * A change holds from the step on that the answer names. Thread: the control thread alone.
 */
#pragma once

#include "preload/control/line.h"

/* @rest: what follows the word "edit"; it is written to. */
void edit_command(char *rest, const struct line_peer *peer, struct text *answer);

/* The same of the word "bank". */
void bank_command(char *rest, const struct line_peer *peer, struct text *answer);
