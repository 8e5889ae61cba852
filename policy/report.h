/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collects what is wrong with a file, each with its place, and gives it back as sorted lines
 * "FILE:LINE:COLUMN: ...". One thread.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define REPORT_MAX 100 /* more is no help; the rest is counted */

struct text_report {
    const char *path;
    const char *what; /* the lines are; NULL: errors */
    struct report_line *lines;
    size_t n_lines;
    size_t n_more; /* beyond REPORT_MAX */
    bool no_memory;
};

/*
 * @line 0: about the file, not a place in it. Control characters become spaces. Without memory it only notes so.
 */
void report_add(struct text_report *report, uint32_t line, uint32_t column, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/**
 * report_finish() - hand the lines over, sorted by place
 * @lines, @n_lines: set only if there are any; each string and the array are the caller's to free()
 * Return: 0 or -ENOMEM. The report is empty afterwards.
 */
int report_finish(struct text_report *report, char ***lines, size_t *n_lines);

/* Copies at most 40 characters of @text, in quotes. */
const char *report_quote(const char *text, size_t n_text, char *buffer, size_t n_buffer);
