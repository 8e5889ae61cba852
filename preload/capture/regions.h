/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the driver's own answers do not tell of device memory: which addresses are mapped in pieces, one after the other,
 * and which memory other processes write or read. Such memory is handed over by flags in kernels, not by the order of
 * streams, so a copy after the site may read what comes next. Thread: any; takes a lock, never across a driver call.
 */
#ifndef PRELOAD_CAPTURE_REGIONS_H
#define PRELOAD_CAPTURE_REGIONS_H

#include <stdbool.h>
#include <stdint.h>

/* @n_bytes from @base on are mapped to a piece of memory, known by @handle (cuMemMap). */
void regions_mapped(uint64_t base, uint64_t n_bytes, uint64_t handle);

/* Whatever is mapped or shared in [base, base + n_bytes) ends. */
void regions_end(uint64_t base, uint64_t n_bytes);

/* The memory of @handle is given to, or comes from, another process or device: so is all that is mapped to it. */
void regions_share_handle(uint64_t handle);

/* [base, base + n_bytes) is shared with another process: cuIpcGetMemHandle, cuIpcOpenMemHandle. */
void regions_share(uint64_t base, uint64_t n_bytes);

/* Is @address in a mapped piece? */
bool regions_is_piece(uint64_t address);

/* Is any of [base, base + n_bytes) shared? */
bool regions_are_shared(uint64_t base, uint64_t n_bytes);

/* After fork, in the child. */
void regions_reset(void);

#endif
