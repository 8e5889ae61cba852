/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work that needs more stack than a thread of the application may have: names are demangled and matched there. The same thread
 * does it, so nothing is handed over and no lock of the loader or of malloc can be waited for by another one, in a constructor,
 * in the child after fork and at exit alike.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/**
 * own_stack_run() - @work(@arg), on a stack of the library's own, all signals blocked
 * @n_bytes: its size; only what is used costs memory
 * Thread: any; not within itself. Return: false: there is no memory for it, and nothing was done.
 */
bool own_stack_run(void (*work)(void *arg), void *arg, size_t n_bytes);
