/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ipc.c - memory between processes: legacy handles, and pools that are exported
 *
 * A handle names a file of the exporting process, which another one opens through /proc/PID/fd: as long as
 * the exporter lives, and under the rights that /proc asks for. The file of a device holds all of its
 * allocations, so nothing has to be prepared for a pointer to be exported.
 */
#include "pool.h"
#include "impl.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define IPC_MAGIC 0x5d31697063000001ull

/* The content of a CUipcMemHandle, and of a CUmemPoolPtrExportData. */
struct ipc_memory {
    uint64_t magic;
    int32_t pid, fd;
    int64_t offset;
    uint64_t size;
    uint64_t id;   /* of the allocation in its process */
    uint64_t file; /* inode of what @fd names: the exporter and those who import it see one */
    int32_t device;
};
static_assert(sizeof(struct ipc_memory) <= CU_IPC_HANDLE_SIZE, "it is the handle");

int ipc_open(int pid, int fd)
{
    char path[64];

    snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, fd);
    return open(path, O_RDWR | O_CLOEXEC);
}

/* 0: there is none. */
static uint64_t file_of(int fd)
{
    struct stat st;

    return fstat(fd, &st) == 0 ? st.st_ino : 0;
}

static void describe(const struct alloc *alloc, void *handle)
{
    struct ipc_memory memory = {
        .magic = IPC_MAGIC,
        .pid = getpid(),
        .fd = alloc->fd,
        .offset = alloc->offset,
        .size = alloc->size,
        .id = alloc->id,
        .file = file_of(alloc->pool ? alloc->pool->fd : alloc->fd),
        .device = alloc->device,
    };

    memset(handle, 0, CU_IPC_HANDLE_SIZE);
    memcpy(handle, &memory, sizeof(memory));
}

CUresult impl_cuIpcGetMemHandle(CUipcMemHandle *pHandle, CUdeviceptr dptr)
{
    struct context *ctx;
    struct alloc *alloc;
    CUresult res;
    DRIVER_LOCKED;

    res = context_current(&ctx);
    if (res != CUDA_SUCCESS)
        return res;
    alloc = memory_find(dptr);
    if (!pHandle || !alloc || alloc->address != dptr || alloc->kind != ALLOC_DEVICE || alloc->freed)
        return CUDA_ERROR_INVALID_VALUE;
    describe(alloc, pHandle);
    return CUDA_SUCCESS;
}

static struct alloc *opened(const struct ipc_memory *memory, const struct context *ctx)
{
    struct alloc *alloc;

    for (uint64_t at = DEVICE_BASE; (alloc = memory_after(at)) && memory_is_device(alloc->address);
         at = alloc->address + alloc->size) {
        if (alloc->kind == ALLOC_IPC && alloc->ctx == ctx && alloc->ipc_pid == memory->pid &&
            alloc->ipc_id == memory->id)
            return alloc;
    }
    return NULL;
}

static CUresult open_memory(const struct ipc_memory *memory, struct context *ctx,
                            struct alloc **out)
{
    int fd = ipc_open(memory->pid, memory->fd);
    struct alloc *alloc;

    if (fd < 0)
        return CUDA_ERROR_INVALID_HANDLE;
    alloc = memory_place(memory->device, ctx, memory->size, ALLOC_IPC);
    if (!alloc ||
        !memory_map(alloc->address, alloc->mapped, fd, memory->offset, PROT_READ | PROT_WRITE)) {
        if (alloc)
            memory_remove(alloc);
        close(fd);
        return CUDA_ERROR_MAP_FAILED;
    }
    alloc->fd = fd;
    alloc->ipc_pid = memory->pid;
    alloc->ipc_id = memory->id;
    *out = alloc;
    return CUDA_SUCCESS;
}

/* INVALID_CONTEXT in the process that exported it: so drivers are reported to answer. */
CUresult impl_cuIpcOpenMemHandle_v2(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags)
{
    struct ipc_memory memory;
    struct context *ctx;
    struct alloc *alloc;
    CUresult res;
    DRIVER_LOCKED;

    memcpy(&memory, &handle, sizeof(memory));
    if (!pdptr || Flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
        return CUDA_ERROR_INVALID_VALUE;
    res = context_current(&ctx);
    if (res != CUDA_SUCCESS)
        return res;
    if (memory.magic != IPC_MAGIC || memory.device < 0 || memory.device >= driver.config.n_devices)
        return CUDA_ERROR_INVALID_HANDLE;
    if (memory.pid == getpid())
        return CUDA_ERROR_INVALID_CONTEXT;
    ctx = context_base(ctx);
    alloc = opened(&memory, ctx);
    if (!alloc)
        res = open_memory(&memory, ctx, &alloc);
    if (res != CUDA_SUCCESS)
        return res;
    alloc->n_opens++;
    *pdptr = alloc->address;
    log_detail("\"ptr\":%llu,\"bytes\":%zu", (unsigned long long)alloc->address, alloc->size);
    return CUDA_SUCCESS;
}

CUresult impl_cuIpcOpenMemHandle(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags)
{
    return impl_cuIpcOpenMemHandle_v2(pdptr, handle, Flags);
}

CUresult impl_cuIpcCloseMemHandle(CUdeviceptr dptr)
{
    struct context *ctx;
    struct alloc *alloc;
    CUresult res;
    DRIVER_LOCKED;

    res = context_current(&ctx);
    if (res != CUDA_SUCCESS)
        return res;
    alloc = memory_find(dptr);
    if (!alloc || alloc->address != dptr || alloc->kind != ALLOC_IPC)
        return CUDA_ERROR_INVALID_VALUE;
    if (alloc->n_opens > 1) {
        alloc->n_opens--;
        return CUDA_SUCCESS;
    }
    context_drain(alloc->ctx);
    return memory_free(dptr);
}

/* ---- pools ---- */

CUresult impl_cuMemPoolExportToShareableHandle(void *handle_out, CUmemoryPool handle,
                                               CUmemAllocationHandleType handleType,
                                               unsigned long long flags)
{
    struct pool *pool = (struct pool *)handle;
    int fd;
    DRIVER_LOCKED;

    if (!handle_out || flags || !object_is(pool, OBJECT_POOL) || pool->fd < 0 ||
        handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    fd = fcntl(pool->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    *(int *)handle_out = fd;
    return CUDA_SUCCESS;
}

CUresult impl_cuMemPoolImportFromShareableHandle(CUmemoryPool *pool_out, void *handle,
                                                 CUmemAllocationHandleType handleType,
                                                 unsigned long long flags)
{
    CUmemPoolProps props = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                             .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                             .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE } };
    int fd = (int)(intptr_t)handle;
    struct pool *pool;
    DRIVER_LOCKED;

    if (!pool_out || flags || handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        !vmm_file_is(fd, "pool", &props.location.id))
        return CUDA_ERROR_INVALID_VALUE;
    fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    pool = fd >= 0 ? pool_new(&props, fd) : NULL;
    if (!pool)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pool->imported = true;
    *pool_out = (CUmemoryPool)pool;
    return CUDA_SUCCESS;
}

CUresult impl_cuMemPoolExportPointer(CUmemPoolPtrExportData *shareData_out, CUdeviceptr ptr)
{
    struct alloc *alloc;
    DRIVER_LOCKED;

    alloc = memory_find(ptr);
    if (!shareData_out || !alloc || alloc->address != ptr || alloc->freed || !alloc->pool ||
        alloc->pool->fd < 0 || alloc->imported)
        return CUDA_ERROR_INVALID_VALUE;
    describe(alloc, shareData_out);
    return CUDA_SUCCESS;
}

CUresult impl_cuMemPoolImportPointer(CUdeviceptr *ptr_out, CUmemoryPool handle,
                                     CUmemPoolPtrExportData *shareData)
{
    struct pool *pool = (struct pool *)handle;
    struct ipc_memory memory;
    struct alloc *alloc;
    DRIVER_LOCKED;

    if (!ptr_out || !shareData || !object_is(pool, OBJECT_POOL) || !pool->imported)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(&memory, shareData, sizeof(memory));
    if (memory.magic != IPC_MAGIC || memory.device != pool->device ||
        memory.file != file_of(pool->fd))
        return CUDA_ERROR_INVALID_VALUE;
    alloc = memory_place(pool->device, NULL, memory.size, ALLOC_POOL);
    if (!alloc)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!memory_map(alloc->address, alloc->mapped, pool->fd, memory.offset,
                    PROT_READ | PROT_WRITE)) {
        memory_remove(alloc);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    alloc->imported = true;
    pool_add(pool, alloc);
    *ptr_out = alloc->address;
    return CUDA_SUCCESS;
}
