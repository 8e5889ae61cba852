/* SPDX-License-Identifier: Apache-2.0 */
/* Names of kernels that no pattern of the spec fits, for sentences about patterns that fit no kernel. */
#pragma once

#include <stddef.h>

/* Remembers @name, of a kernel that the application looked up or launched. Thread: any; takes a lock, allocates. */
void strangers_note(const char *name);

/**
 * strangers_near() - what to say after a pattern that no kernel's name fits: how many others were seen, and which are near it
 * @buffer: nothing where none was
 * Thread: any; takes a lock.
 */
void strangers_near(const char *pattern, char *buffer, size_t n_buffer);

/* In the child after fork. */
void strangers_reset(void);
