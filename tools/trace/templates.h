/* SPDX-License-Identifier: Apache-2.0 */
/* Names of C++ functions as core/demangle.h writes them: which function it is, and what its template arguments are. Pure. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* Parts of a name, borrowed from it. */
struct template_name {
    const char *function; /* "ns::flash" */
    size_t n_function;
    const char *arguments; /* "64, 128" */
    size_t n_arguments;
};

/* Return: false: it has no template arguments of its own. */
bool template_read(const char *name, struct template_name *out);

/* Is it the same function? */
bool template_same(const struct template_name *a, const struct template_name *b);

/* How many arguments are alike, each in its place. */
size_t template_alike(const struct template_name *a, const struct template_name *b);

/**
 * template_changes() - which arguments differ
 * Return: [{"place": "1.3", "a": "64", "b": "128"}], the third argument of the first one: places count from 1, and only an argument
 * that differs within goes down to the parts of it. Where the numbers of arguments differ, all of them are one with the place "".
 * NULL: no memory.
 */
json_t *template_changes(const struct template_name *a, const struct template_name *b);
