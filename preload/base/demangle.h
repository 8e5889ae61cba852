/* SPDX-License-Identifier: Apache-2.0 */
/*
 * C++ names of kernels as people write them. The C++ runtime is the application's, if it has one: the library needs
 * none. Any thread; takes the loader's lock.
 */
#ifndef PRELOAD_BASE_DEMANGLE_H
#define PRELOAD_BASE_DEMANGLE_H

#include <stdbool.h>

/* Does @name hide another one? */
static inline bool demangle_is_for(const char *name)
{
    return name[0] == '_' && name[1] == 'Z';
}

/* Is there a C++ runtime in the process by now? Once there is, there always is. */
bool demangle_can(void);

/* What @name hides. Return: NULL where it hides nothing, or nobody can tell; free() it. */
char *demangle(const char *name);

#endif
