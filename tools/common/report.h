/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a tool prints of a run: lines and tables as text, or one JSON document of the same. Text goes out line by line
 * (tools/common/say.h). A table is built once, as JSON rows, and printed as either. A program of one thread.
 */
#pragma once

#include "read/value.h"
#include "storage/text.h"
#include "tools/common/say.h"

#include <stdbool.h>
#include <stdio.h>

/* The exit status of a tool that cannot do what it was asked for. */
enum { REPORT_IMPOSSIBLE = 2 };

#define N_OF(array) (sizeof(array) / sizeof *(array))

struct column {
    const char *title;
    const char *key; /* of the row's member */
    int width; /* in characters, at least; below 0: to the left. The last column is never filled up. */
    void (*cell)(struct text *to, const json_t *row);    /* NULL: of the member alone */
    void (*value)(struct text *to, const json_t *value); /* NULL: the member as it is */
};

#define REPORT_COLUMNS 32 /* of a table, at most */

/* A document on stdout: an object of members and tables, or (text) lines and tables. */
struct report {
    bool json;
    bool failed; /* no memory */
    bool is_object;
    const struct column *columns;
    size_t n_columns, n_rows;
    size_t widths[REPORT_COLUMNS]; /* of the table: as wide as the first rows are */
    json_t *held;                  /* these, until they are printed; owned */
};

/* Adds a member. JSON only; takes @value over. */
void report_member(struct report *report, const char *key, json_t *value);

/* Prints a line. Text only. */
void report_line(struct report *report, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Prints a line as it is: for what the program draws itself, colours included, and nothing that a run says. Text only. */
void report_drawn_line(struct report *report, const struct text *line);

/* A table with its titles. @key: of the member; NULL: the document is the table. */
void report_table(struct report *report, const char *key, const struct column *columns,
                  size_t n_columns);
/* A row, an object; takes it over. NULL: no memory. No line may be printed within a table. */
void report_row(struct report *report, json_t *row);
void report_table_end(struct report *report);

/* Ends the document. Return: @status, or REPORT_IMPOSSIBLE if it could not be built. */
int report_end(struct report *report, int status);
