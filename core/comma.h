/* SPDX-License-Identifier: Apache-2.0 */
/* Words of a list that commas separate: "q, k,v". Any thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

/*
 * The next word, without the spaces around it: @word with @n bytes, in the list. @at: where the list goes on; begin with the list, NULL has no word. An empty
 * list has one empty word. Return: false: there is none.
 */
static inline bool comma_next(const char **at, const char **word, size_t *n)
{
    if (!*at)
        return false;
    const char *end = *at + strcspn(*at, ",");
    *word = *at + strspn(*at, " ");
    for (*n = *word < end ? (size_t)(end - *word) : 0; *n && (*word)[*n - 1] == ' ';)
        --*n;
    *at = *end ? end + 1 : NULL;
    return true;
}
