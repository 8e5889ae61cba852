/* SPDX-License-Identifier: Apache-2.0 */
/* Whether memory of the process can be read or written, found out without a fault. Thread: any; changes errno. */
#pragma once

#include <stdint.h>

/**
 * readable_check() - can the @n_bytes from @address on be read?
 * Their pages are in memory afterwards. It holds as long as nobody unmaps them.
 * Return: 0; -EFAULT: not all of them; another -errno: the system does not say.
 */
int readable_check(uint64_t address, uint64_t n_bytes);

/* The same of writing. Nothing is written. */
int writable_check(uint64_t address, uint64_t n_bytes);
