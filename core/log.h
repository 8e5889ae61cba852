/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Log lines of the capturing library: one write(2) a line, to stderr unless DMI_LOG says otherwise
 * ("none", or the path of a file to append to). Never stdout. errno is kept. Any thread.
 */
#ifndef CORE_LOG_H
#define CORE_LOG_H

/* Sets where lines go: the value of DMI_LOG, or NULL. Init only; before it lines go to stderr. */
void log_init(const char *destination);

/* Writes "dmi: " and the line; a newline is added. Lines over 1000 bytes are cut. */
void log_line(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
