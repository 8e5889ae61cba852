/* SPDX-License-Identifier: Apache-2.0 */
/* Room for one more entry in an array that doubles. An array is one thread's. */
#pragma once

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>

/**
 * grow() - room for entry number @n
 * @array: address of the pointer; NULL at first, to be freed with free()
 * @room: entries that there is room for; 0 at first
 * @size: of an entry, in bytes; @first: entries at first
 * Return: 0, or -ENOMEM: array and room are as they were.
 */
static inline int grow(void **array, size_t n, size_t *room, size_t size, size_t first)
{
    if (n < *room)
        return 0;
    size_t more = *room ? 2 * *room : first;
    void *grown = realloc(*array, more * size);
    if (!grown)
        return -ENOMEM;
    *array = grown;
    *room = more;
    return 0;
}

/* The same of an array of structs or numbers, for 64 at first. */
#define GROW(array, n, room) grow((void **)&(array), n, &(room), sizeof *(array), 64)

/* Room for @n entries in an array that has room for @room, which does not double. Gives 0 or -ENOMEM: array and room are as they were. */
#define RESERVE(array, n, room)                                                                    \
    ({                                                                                             \
        size_t _wanted = (n);                                                                      \
        void *_more = _wanted <= (room) ? NULL : realloc(array, _wanted * sizeof *(array));        \
        if (_more) {                                                                               \
            (array) = _more;                                                                       \
            (room) = _wanted;                                                                      \
        }                                                                                          \
        _wanted <= (room) ? 0 : -ENOMEM;                                                           \
    })

/* Room for one more entry in an array of @n that has room for no more. Gives likewise. */
#define ONE_MORE(array, n)                                                                         \
    ({                                                                                             \
        void *_more = realloc(array, ((n) + 1) * sizeof *(array));                                 \
        if (_more)                                                                                 \
            (array) = _more;                                                                       \
        _more ? 0 : -ENOMEM;                                                                       \
    })

/* Puts a value, which may have commas, after the last one. @first: entries at first. Gives 0 or -ENOMEM. */
#define PUSH(array, n, room, first, ...)                                                           \
    ({                                                                                             \
        int _grown = grow((void **)&(array), n, &(room), sizeof *(array), first);                  \
        if (!_grown)                                                                               \
            (array)[(n)++] = __VA_ARGS__;                                                          \
        _grown;                                                                                    \
    })
