/* SPDX-License-Identifier: Apache-2.0 */
/*
 * operators.h - own kernels that stand in the place of those of which a program has machine code alone
 *
 * The double of the CUDA runtime (../runtime) asks for a kernel by the name under which the program registered it. An own kernel
 * has the parameters of the other one, byte for byte: grid, block and parameters of a launch go to it unchanged.
 */
#ifndef STANDIN_OPERATORS_H
#define STANDIN_OPERATORS_H

#include <stddef.h>

struct operator
{
    const void *image; /* a fat binary with PTX, or PTX: what cuLibraryLoadData() takes */
    size_t size;       /* its bytes, which live as long as the process */
    const char *entry; /* the kernel's name in it */
};

/**
 * operators_find() - the own kernel that stands in the place of another
 * @mangled: the other kernel's name as the program registered it
 * Any thread may call it.
 * Return: 0 and *@found, or -1: there is none.
 */
int operators_find(const char *mangled, struct operator* found);

#endif
