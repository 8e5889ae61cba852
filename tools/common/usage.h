/* SPDX-License-Identifier: Apache-2.0 */
/* What a tool says of a command line that is wrong. A program of one thread. */
#pragma once

enum { USAGE_WRONG = 2 }; /* the status to exit with, of every tool */

/* Says on stderr where help is. Return: USAGE_WRONG. */
int usage_hint(void);

/* Says what is wrong, and where help is. Return: USAGE_WRONG. */
int usage_wrong(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* @word: what stands where one of @commands was expected ("steps, show"); NULL or "": nothing does. Return: USAGE_WRONG. */
int usage_command(const char *word, const char *commands);
