/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What begins a step where the engine does not say it: DMI_TRACE_STEP=graph, kernel:PATTERN or range:PATTERN, as a HookSpec's patterns
 * are. Thread: any, after named_read().
 */
#pragma once

#include "preload/base/cuda_abi.h"

#include <dmi/trace.h>

#include <stdbool.h>
#include <stddef.h>

#define NAMED_VARIABLE "DMI_TRACE_STEP"

/* Reads the variable, once; what it cannot mean is said in the log. Thread: one at a time. */
void named_read(void);

/* What the user named; 0: nothing. */
uint32_t named_source(void);

/* The words of it, as the user wrote them; "": nothing. */
const char *named_text(void);

/* Does each launch of a graph begin a step? */
bool named_graph(void);

/* Does a launch of this function? Asks the driver for its name, once. Thread: launching. */
bool named_kernel(const void *function);

/*
 * The application got @kernel, whose handle alone no driver can be asked about; @name: NULL, the driver is asked as for a kernel.
 * Thread: any; keeps errno.
 */
void named_note(CUkernel kernel, const char *name);

/* Does a range with the text @text, of @n bytes? */
bool named_range(const char *text, size_t n);

/* Functions may have ended: their handles may be used again. */
void named_forget(void);

/* After fork, in the child. */
void named_reset(void);
