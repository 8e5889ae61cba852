/* SPDX-License-Identifier: Apache-2.0 */
/* What people wrote into a HookSpec that is written anew: all but its forwards, sites and what is absent. One thread. */
#pragma once

#include <stdio.h>

/* Copies the lines of a HookSpec that are not of `forward:`, `sites:` or `absent:`, with the comments above them. */
void head_copy(const char *text, FILE *out);
