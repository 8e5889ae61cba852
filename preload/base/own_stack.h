/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work that needs more stack than a thread of the application may have: names are demangled and matched there. The same thread
 * does it, so nothing is handed over and no lock of the loader or of malloc can be waited for by another one, in a constructor,
 * in the child after fork and at exit alike.
 */
#ifndef PRELOAD_BASE_OWN_STACK_H
#define PRELOAD_BASE_OWN_STACK_H

/**
 * own_stack_run() - @work(@arg), on a stack of the library's own of 2 MiB, all signals blocked
 * On the caller's where there is no memory for one. Thread: any; not within itself.
 */
void own_stack_run(void (*work)(void *arg), void *arg);

#endif
