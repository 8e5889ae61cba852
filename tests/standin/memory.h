/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory.h - the table of allocations and what is mapped where: for the files that give memory out
 *
 * All with driver.lock held. Sizes called @mapped are complete pages.
 */
#ifndef STANDIN_MEMORY_H
#define STANDIN_MEMORY_H

#include "driver.h"

#include <sys/mman.h>
#include <sys/types.h>

enum { PAGE = 4096, FRESH = 0xff, STALE = 0xdb };

/* Allocations lie in the lower half of a device's window, reserved ranges (vmm.c) in the upper one. */
#define RESERVED_BASE(device) (DEVICE_BASE + (uint64_t)(device)*DEVICE_SPAN + DEVICE_SPAN / 2)

static inline size_t round_page(size_t n)
{
    return (n + PAGE - 1) & ~(size_t)(PAGE - 1);
}

/** memory_id() - a number that no allocation has had */
unsigned long long memory_id(void);
struct alloc *memory_add(uint64_t address, size_t size, size_t mapped, enum alloc_kind kind);
void memory_remove(struct alloc *alloc);
/** memory_after() - the first allocation that ends above @address, or NULL */
struct alloc *memory_after(uint64_t address);
/** memory_gap() - a free range of device addresses, with a page free after it; 0: none */
uint64_t memory_gap(int device, size_t mapped);
/** memory_take() - @n bytes of the device's memory are used from now on; false: there are not that many */
bool memory_take(int device, size_t n);
void memory_give(int device, size_t n);

/** memory_map() - kernels reach @offset of @fd at @at, as far as @prot says */
bool memory_map(uint64_t at, size_t mapped, int fd, off_t offset, int prot);
void memory_protect(uint64_t at, size_t mapped, int prot);
void memory_unmap(uint64_t at, size_t mapped);
void memory_poison(uint64_t at, size_t n, int byte);

/** memory_place() - a range of @device's addresses for @size bytes, without memory yet */
struct alloc *memory_place(int device, struct context *ctx, size_t size, enum alloc_kind kind);
/** memory_back() - give it memory of @fd (-1: the device's own file), counted as used */
CUresult memory_back(struct alloc *alloc, int fd, off_t offset, int prot);
/** memory_unback() - the reverse; @alloc keeps its addresses */
void memory_unback(struct alloc *alloc);
/** memory_drop() - end of an allocation of any kind */
void memory_drop(struct alloc *alloc);

CUresult memory_host_alloc(struct context *ctx, int device, size_t size, enum alloc_kind kind,
                           unsigned flags, uint64_t *out);
/** ipc_open() - a file of another process, or -1 */
int ipc_open(int pid, int fd);
/** vmm_reserved() - the reservation that holds @at */
bool vmm_reserved(uint64_t at, uint64_t *first, size_t *size);
bool vmm_exportable(const struct alloc *alloc);
/** vmm_block_id() - of the physical memory that @alloc shows */
unsigned long long vmm_block_id(const struct alloc *alloc);
/** vmm_file_is() - is @fd a file of a stand-in's for @what, of a device that this process has too */
bool vmm_file_is(int fd, const char *what, int *device);
bool host_range_add(uint64_t first, uint64_t end);
void host_range_remove(uint64_t first);

#endif
