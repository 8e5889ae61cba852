/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How far a command is, in a line on stderr that is taken away again: only on a terminal, and once it has taken a second.
 * It counts what the process has read and written (/proc/self/io), in a thread of its own, so commands need not know of it.
 * One that computes says what it is at. All functions are for the program's main thread.
 */
#pragma once

#include <stdint.h>

/* @n_all: bytes that the command reads where it reads all of a run; 0: not known. */
void ticker_start(uint64_t n_all);

/* @what: it is at, from now on, in place of bytes; borrowed until ticker_stop(). */
void ticker_say(const char *what);

/* The line is gone. Nothing where it was not started. */
void ticker_stop(void);
