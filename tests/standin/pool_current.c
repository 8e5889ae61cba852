/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool_current.c - pools that are created, and which of them a location's allocations come from
 */
#include "pool.h"
#include "impl.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* One for each kind of memory and location, made when it is first asked for. */
static struct place {
    CUmemAllocationType type;
    CUmemLocation location;
    struct pool *standard, *current;
} places[4 * MAX_DEVICES];
static size_t n_places;

static CUresult location_check(CUmemAllocationType type, const CUmemLocation *location)
{
    if (type != CU_MEM_ALLOCATION_TYPE_PINNED && type != CU_MEM_ALLOCATION_TYPE_MANAGED)
        return CUDA_ERROR_INVALID_VALUE;
    switch (location->type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        if (location->id < 0 || location->id >= driver.config.n_devices)
            return CUDA_ERROR_INVALID_DEVICE;
        return CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_HOST: return CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
        return location->id == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_MEM_LOCATION_TYPE_NONE:
        return type == CU_MEM_ALLOCATION_TYPE_MANAGED ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

static CUresult place_of(CUmemAllocationType type, const CUmemLocation *location,
                         struct place **out)
{
    CUmemPoolProps props = { .allocType = type, .location = *location };
    bool numbered = location->type == CU_MEM_LOCATION_TYPE_DEVICE;
    CUresult res = location_check(type, location);
    struct place *place = places;

    if (res != CUDA_SUCCESS)
        return res;
    while (place < places + n_places &&
           (place->type != type || place->location.type != location->type ||
            (numbered && place->location.id != location->id)))
        place++;
    if (place == places + n_places) {
        if (n_places == ARRAY_SIZE(places))
            return CUDA_ERROR_OUT_OF_MEMORY;
        *place = (struct place){ .type = type, .location = *location };
        place->standard = place->current = pool_new(&props, -1);
        if (!place->standard)
            return CUDA_ERROR_OUT_OF_MEMORY;
        place->standard->is_default = true;
        n_places++;
    }
    *out = place;
    return CUDA_SUCCESS;
}

void pool_no_longer_current(struct pool *pool)
{
    for (size_t i = 0; i < n_places; i++) {
        if (places[i].current == pool)
            places[i].current = places[i].standard;
    }
}

static CUresult get(CUmemoryPool *out, const CUmemLocation *location, CUmemAllocationType type,
                    bool current)
{
    struct place *place;
    CUresult res;

    if (!out || !location)
        return CUDA_ERROR_INVALID_VALUE;
    res = place_of(type, location, &place);
    if (res == CUDA_SUCCESS)
        *out = (CUmemoryPool)(current ? place->current : place->standard);
    return res;
}

static CUmemLocation of_device(int device)
{
    return (CUmemLocation){ .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device };
}

CUresult pool_of_device(CUmemoryPool *pool, int device)
{
    CUmemLocation location = of_device(device);

    return get(pool, &location, CU_MEM_ALLOCATION_TYPE_PINNED, true);
}

CUresult impl_cuDeviceGetDefaultMemPool(CUmemoryPool *pool_out, CUdevice dev)
{
    CUmemLocation location = of_device(dev);
    DRIVER_LOCKED;

    return get(pool_out, &location, CU_MEM_ALLOCATION_TYPE_PINNED, false);
}

CUresult impl_cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev)
{
    DRIVER_LOCKED;

    return pool_of_device(pool, dev);
}

CUresult impl_cuMemGetDefaultMemPool(CUmemoryPool *pool_out, CUmemLocation *location,
                                     CUmemAllocationType type)
{
    DRIVER_LOCKED;

    return get(pool_out, location, type, false);
}

CUresult impl_cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
    DRIVER_LOCKED;

    return get(pool, location, type, true);
}

static CUresult set(const CUmemLocation *location, CUmemAllocationType type, CUmemoryPool handle)
{
    struct pool *pool = (struct pool *)handle;
    struct place *place;
    CUresult res;

    if (!location || !object_is(pool, OBJECT_POOL) || pool->destroyed)
        return CUDA_ERROR_INVALID_VALUE;
    res = place_of(type, location, &place);
    if (res != CUDA_SUCCESS)
        return res;
    if (pool->props.allocType != type || pool->props.location.type != location->type ||
        (location->type == CU_MEM_LOCATION_TYPE_DEVICE && pool->props.location.id != location->id))
        return CUDA_ERROR_INVALID_VALUE;
    place->current = pool;
    return CUDA_SUCCESS;
}

CUresult impl_cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool)
{
    CUmemLocation location = of_device(dev);
    DRIVER_LOCKED;

    return set(&location, CU_MEM_ALLOCATION_TYPE_PINNED, pool);
}

CUresult impl_cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool)
{
    DRIVER_LOCKED;

    return set(location, type, pool);
}

/* A pool that can be exported has a file of its own, which is the handle. */
static CUresult pool_file(const CUmemPoolProps *props, int *fd)
{
    char name[64];

    *fd = -1;
    if (!props->handleTypes)
        return CUDA_SUCCESS;
    if (props->handleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (props->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    snprintf(name, sizeof(name), "standin-pool:%d", props->location.id);
    *fd = memfd_create(name, MFD_CLOEXEC);
    if (*fd < 0 || ftruncate(*fd, DEVICE_SPAN) != 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    return CUDA_SUCCESS;
}

CUresult impl_cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *poolProps)
{
    struct pool *made;
    CUresult res;
    int fd;
    DRIVER_LOCKED;

    if (!pool || !poolProps || poolProps->win32SecurityAttributes)
        return CUDA_ERROR_INVALID_VALUE;
    res = location_check(poolProps->allocType, &poolProps->location);
    if (res == CUDA_SUCCESS)
        res = pool_file(poolProps, &fd);
    if (res != CUDA_SUCCESS)
        return res;
    made = pool_new(poolProps, fd);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *pool = (CUmemoryPool)made;
    return CUDA_SUCCESS;
}
