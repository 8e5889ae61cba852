/* SPDX-License-Identifier: Apache-2.0 */
/*
 * C++ names of kernels as people write them. The library has a demangler of its own: that of the C++ runtime knows no name beyond
 * 1,024 characters, lays its tables on the caller's stack, and comes with the application or not at all.
 */
#ifndef PRELOAD_BASE_DEMANGLE_H
#define PRELOAD_BASE_DEMANGLE_H

#include <stdbool.h>

/* Does @name hide another one? */
static inline bool demangle_is_for(const char *name)
{
    return name[0] == '_' && name[1] == 'Z';
}

/**
 * demangle() - what @name hides, as c++filt writes it
 * Needs up to 1 MiB of stack: base/own_stack.h. Thread: any; allocates, takes no lock. Return: NULL where it hides nothing, or is
 * not understood; free() it.
 * Source: Itanium C++ ABI, 5.1
 */
char *demangle(const char *name);

#endif
