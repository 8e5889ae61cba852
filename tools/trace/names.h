/* SPDX-License-Identifier: Apache-2.0 */
/* Names of kernels as a line has room for them. A program of one thread. */
#pragma once

#include "storage/text.h"

/**
 * names_short() - add a kernel's name without its parameters and without namespaces; its middle is left out where it is longer than 72 bytes
 * @name: as the driver has it, or demangled
 * "_ZN2at6native13add_kernelIfEEvPT_" becomes "add_kernel<float>".
 */
void names_short(struct text *to, const char *name);

/* What the name hides, as c++filt writes it; a copy of it where it hides nothing. free() it. NULL: no memory. */
char *names_demangled(const char *name);
