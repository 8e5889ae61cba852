/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which CPUs the process was given when the library was loaded, and which of them are left beside an application's thread that
 * has pinned itself since. Thread: any, after the constructor.
 */
#pragma once

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

/* How many CPUs the process was given; 1 where the system does not say. */
uint32_t cpus_given(void);

/* Where a thread of ours is in nobody's way. Return: false where it should stay where the calling thread is. */
bool cpus_beside(cpu_set_t *out);
