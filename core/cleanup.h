/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scope-bound owners: `_cleanup_(freep) char *s = NULL;`. Initialise the variable where it is
 * declared; hand it over by setting it to NULL (steal_ptr) or -1 (steal_fd). Any thread.
 */
#ifndef CORE_CLEANUP_H
#define CORE_CLEANUP_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define _cleanup_(fn) __attribute__((cleanup(fn)))

static inline void freep(void *p)
{
    free(*(void **)p);
}

static inline void closep(int *fd)
{
    int saved = errno;
    if (*fd >= 0)
        close(*fd);
    errno = saved;
}

static inline void fclosep(FILE **f)
{
    if (*f)
        fclose(*f);
}

#define steal_ptr(p)                                                                               \
    ({                                                                                             \
        __typeof__(p) _taken = (p);                                                                \
        (p) = NULL;                                                                                \
        _taken;                                                                                    \
    })

static inline int steal_fd(int *fd)
{
    int taken = *fd;
    *fd = -1;
    return taken;
}

#endif
