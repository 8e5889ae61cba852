/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Atomic accesses whose names say the memory order. They work on plain integers and pointers, so
 * that structs shared with the device and with files need no _Atomic. Each release in the code
 * names its acquire (file and function), and the reverse. Any thread.
 */
#pragma once

#define atomic_load_relaxed(p)        __atomic_load_n((p), __ATOMIC_RELAXED)
#define atomic_load_acquire(p)        __atomic_load_n((p), __ATOMIC_ACQUIRE)
#define atomic_store_relaxed(p, v)    __atomic_store_n((p), (v), __ATOMIC_RELAXED)
#define atomic_store_release(p, v)    __atomic_store_n((p), (v), __ATOMIC_RELEASE)
#define atomic_add_relaxed(p, v)      __atomic_fetch_add((p), (v), __ATOMIC_RELAXED)
#define atomic_sub_relaxed(p, v)      __atomic_fetch_sub((p), (v), __ATOMIC_RELAXED)
#define atomic_add_acq_rel(p, v)      __atomic_fetch_add((p), (v), __ATOMIC_ACQ_REL)
#define atomic_sub_acq_rel(p, v)      __atomic_fetch_sub((p), (v), __ATOMIC_ACQ_REL)
#define atomic_exchange_acq_rel(p, v) __atomic_exchange_n((p), (v), __ATOMIC_ACQ_REL)
/* @expected: points to the value that *p must have; on failure it gets the value that *p had */
#define atomic_cas_acq_rel(p, expected, v)                                                         \
    __atomic_compare_exchange_n((p), (expected), (v), 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)
