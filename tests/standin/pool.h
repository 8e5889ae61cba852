/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool.h - memory pools. All with driver.lock held.
 */
#ifndef STANDIN_POOL_H
#define STANDIN_POOL_H

#include "memory.h"

struct pool {
    struct object object;
    struct pool *next;
    CUmemPoolProps props;
    int device; /* of device memory; for managed and host memory what pointers say of themselves */
    bool on_host;
    bool is_default;
    bool imported;
    bool destroyed; /* goes with its last allocation */
    uint64_t peers; /* other devices that may access it */
    int reuse[3];   /* by CU_MEMPOOL_ATTR_REUSE_* - 1 */
    uint64_t threshold;
    uint64_t used, used_high;         /* by what is allocated */
    uint64_t reserved, reserved_high; /* by that and by what is free and kept */
    struct alloc *blocks;             /* allocated and free ones */
    int fd;                           /* of a pool that can be exported; -1: the device's */
    off_t fd_end;
};

struct pool *pool_new(const CUmemPoolProps *props, int fd);
/** pool_of_device() - the current pool of a device's memory */
CUresult pool_of_device(CUmemoryPool *pool, int device);
/** pool_no_longer_current() - where @pool is the current one its default is from now on */
void pool_no_longer_current(struct pool *pool);
/** pool_add() - @alloc is of @pool now */
void pool_add(struct pool *pool, struct alloc *alloc);

#endif
