/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is known of device memory: mappings that follow one another and who may read them, allocations that the
 * driver was asked for, and which memory other processes write or read. The latter is handed over by flags in kernels, not by
 * the order of streams, so a copy after the site may read what comes next. What was found stays until the memory ends.
 * Thread: any; takes a lock, never across a driver call.
 */
#pragma once

#include "preload/context/context.h"

#include <stdbool.h>
#include <stdint.h>

/* ------------------------------------------------------------------------- looking */

/**
 * regions_find() - the memory that @first lies in, if it is known
 * @n_bytes: as many from there on are wanted; a run of mappings is followed that far
 * Return: false: the driver must be asked. *@range says how far @device may read, size 0: it may not at all.
 */
bool regions_find(uint64_t first, uint64_t n_bytes, int device, struct memory_range *range);

/* A number to be had before the driver is asked; it changes whenever memory ends. */
uint64_t regions_moment(void);

/**
 * regions_found() - the driver has named the allocation that *@range is
 * @moment: of regions_moment(), before the driver was asked
 * Sets range->shared. Return: whether it is kept; false where memory ended meanwhile, or there is no host memory for it.
 */
bool regions_found(struct memory_range *range, uint64_t moment);

/* ------------------------------------------------------------------------- memory that begins */

/* @n_bytes from @base on are mapped to memory of @handle (cuMemMap). No device may read them yet. */
void regions_mapped(uint64_t base, uint64_t n_bytes, uint64_t handle);

/* In mappings of [@base, @base + @n_bytes) devices get or lose access (cuMemSetAccess). @granted, @revoked: a bit a device. */
void regions_permit(uint64_t base, uint64_t n_bytes, uint64_t granted, uint64_t revoked);

/* ------------------------------------------------------------------------- memory that ends */

struct region;

/**
 * regions_end() - whatever is known of [@base, @base + @n_bytes) is about to end
 * Called before the driver's call: once that returns, another thread may be given the same addresses. Return: for
 * regions_ended(), which follows.
 */
struct region *regions_end(uint64_t base, uint64_t n_bytes);

/* The driver has ended it, or has refused to. */
void regions_ended(uint64_t base, uint64_t n_bytes, struct region *ending, bool ended);

/* Allocations may have ended, and the call does not say which: the library asks the driver anew for each. */
void regions_unsure(void);

/* ------------------------------------------------------------------------- handles, and what is shared */

/* The memory of @handle is given to, or comes from, another process or device: so is all that is mapped to it. */
void regions_share_handle(uint64_t handle);

/* The driver has given out @handle for the memory that is mapped at @address (cuMemRetainAllocationHandle). */
void regions_retained(uint64_t address, uint64_t handle);

/* A handle that came from another process, to be released once more. */
void regions_imported(uint64_t handle);

struct memory;

/* @handle is about to be released; once it is, the driver may give it to other memory. Return: for regions_released(). */
struct memory *regions_release(uint64_t handle);

/* The driver has released it, or has refused to. */
void regions_released(uint64_t handle, struct memory *releasing, bool released);

/* The allocation [@base, @base + @n_bytes), or the memory of the mapping that @base lies in, is shared with another process. */
void regions_share(uint64_t base, uint64_t n_bytes);

/* After fork, in the child. */
void regions_reset(void);
