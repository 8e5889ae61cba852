/* SPDX-License-Identifier: Apache-2.0 */
/* What dmi-sites prints holds names that files claim. One thread. */
#pragma once

/* From now on stdout passes only what a terminal may print, and line ends; all else becomes '?'. */
void printable_install(void);

/* Line ends in a name that a file claims, which may be NULL, become another control character. Return: @name. */
char *printable_name(char *name);
