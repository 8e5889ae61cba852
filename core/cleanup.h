/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scope-bound owners: `_cleanup_(freep) char *s = NULL;`. Initialise the variable where it is
 * declared; hand it over by setting it to NULL (steal_ptr) or -1 (steal_fd). Any thread.
 */
#pragma once

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define _cleanup_(fn) __attribute__((cleanup(fn)))

/* Cleanup functions for _cleanup_: each takes the variable's address and ignores an empty owner. */
static inline void freep(void *p)
{
    free(*(void **)p);
}

/* Closes a descriptor, unless it is negative; keeps errno. */
static inline void closep(int *fd)
{
    int saved = errno;
    if (*fd >= 0)
        close(*fd);
    errno = saved;
}

/* Closes a stream, unless it is NULL. */
static inline void fclosep(FILE **f)
{
    if (*f)
        fclose(*f);
}

/* The pointer's value; the pointer becomes NULL, so that its cleanup does nothing. */
#define steal_ptr(p)                                                                               \
    ({                                                                                             \
        __typeof__(p) _taken = (p);                                                                \
        (p) = NULL;                                                                                \
        _taken;                                                                                    \
    })

/* The descriptor's value; the variable becomes -1, so that its cleanup does nothing. */
static inline int steal_fd(int *fd)
{
    int taken = *fd;
    *fd = -1;
    return taken;
}
