/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lines that a tool prints, one at a time: what a run or a file claims can neither begin a line of its own nor reach
 * the terminal as a control. And numbers as people read them. A program of one thread.
 */
#pragma once

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* One line on stderr, after the tool's name and ": ". */
void complain(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* As complain(), with the arguments in a list. */
void complain_of(const char *fmt, va_list ap) __attribute__((format(printf, 1, 0)));

/* One line after @prefix; what a terminal may not print becomes '?', line ends included. */
void say_line(FILE *to, const char *prefix, const char *s, size_t n);
void say_formatted(FILE *to, const char *prefix, const char *fmt, va_list ap)
    __attribute__((format(printf, 3, 0)));

/* Writes out what stdout holds. Return: @status, also where its reader has left, as `head` does; @failed: said, it cannot be written. */
int say_flush(int status, int failed);

/* Is called before each line, in the thread that prints it; NULL: nothing is. */
void say_before(void (*fn)(void));

/* "1,097" */
const char *grouped(uint64_t n, char out[32]);
#define COUNTED_BYTES 96
/* "1 site", "1,097 sites": the words for one and for several stand here alone. */
const char *counted(uint64_t n, const char *one, const char *several, char out[COUNTED_BYTES]);
/* "1.5 KiB" */
const char *bytes_text(double n, char out[24]);
