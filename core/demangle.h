/* SPDX-License-Identifier: Apache-2.0 */
/*
 * C++ names of kernels as people write them, by libiberty, which is linked statically. The C++ runtime has the same demangler, but
 * that refuses names beyond 1,024 characters, and comes with the application or not at all.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Does @name hide another one? */
static inline bool demangle_is_for(const char *name)
{
    return name[0] == '_' && name[1] == 'Z';
}

/**
 * demangle() - what @name hides, as c++filt writes it
 * Needs demangle_stack() bytes of stack: core/own_stack.h. Thread: any; allocates, takes no lock. Return: NULL where it hides nothing,
 * is not understood, or would be longer than 4 MiB; free() it.
 */
char *demangle(const char *name);

/* Bytes of stack for @name: its tables lie there, and each character may be a level of recursion. */
size_t demangle_stack(const char *name);
