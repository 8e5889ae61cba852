/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Log lines of the capturing library: one write(2) a line, to stderr unless DMI_LOG says otherwise
 * ("none", or the path of a file to append to). Never stdout. errno is kept. Any thread.
 *
 * The process is the application's, so a line never ends it, never hangs it, and never lands in a file of its own:
 *
 * - stderr is the file that descriptor 2 was when the process began. Where descriptor 2 is another file now, lines are lost.
 * - A pipe without a reader, a full disk and RLIMIT_FSIZE lose the line; no signal reaches the application.
 * - A pipe, a socket or a terminal whose reader is slow has LOG_WAIT_MS to take a line. Lines are lost after one
 *   that waited in vain, without a wait, until one fits again. That one says how many.
 */
#pragma once

#define LOG_WAIT_MS 100

/* Notes which file stderr is, and which folder the process begins in. The loader calls it before main(); tests call it again. */
void log_note_start(void);

/* Sets where lines go: the value of DMI_LOG, or NULL; a file is seen from the folder in which the process began. Init only; before it lines go to stderr. */
void log_init(const char *destination);

/* Writes "dmi: " and the line; a newline is added. Lines over 1000 bytes are cut. */
void log_line(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
