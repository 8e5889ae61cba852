/* SPDX-License-Identifier: Apache-2.0 */
/*
 * resolver.c - cuGetProcAddress, both versions, over the table of driver.def
 *
 * As verified on a driver 550: names with a suffix never resolve; of a name the newest variant not
 * above the asked version is given; flag 2 prefers per-thread variants; v2 reports what it could not
 * find in its status and succeeds, v1 returns an error and leaves the pointer alone. What came after the driver's own
 * version is unknown to it.
 */
#include "driver.h"
#include "impl.h"

#include <string.h>

static const struct entry *find(const char *name, int version, bool per_thread, bool *known)
{
    const struct entry *best = NULL;

    *known = false;
    for (int i = 0; i < N_ENTRIES; i++) {
        const struct entry *entry = &entry_table[i];

        if (entry->version > driver_version || strcmp(entry->name, name) != 0)
            continue;
        *known = true;
        if (entry->version > version || (entry->per_thread && !per_thread))
            continue;
        if (!best || entry->per_thread > best->per_thread ||
            (entry->per_thread == best->per_thread && entry->version > best->version))
            best = entry;
    }
    return best;
}

CUresult impl_cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
                                  CUdriverProcAddressQueryResult *symbolStatus)
{
    const struct entry *entry;
    bool known;

    if (!symbol || !pfn || flags > 2 + 1)
        return CUDA_ERROR_INVALID_VALUE;
    entry =
        find(symbol, cudaVersion, flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &known);
    *pfn = entry ? (void *)(uintptr_t)entry->fn : NULL;
    if (symbolStatus)
        *symbolStatus = entry   ? CU_GET_PROC_ADDRESS_SUCCESS
                        : known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    log_detail("\"symbol\":\"%.80s\",\"version\":%d,\"flags\":%llu,\"found\":\"%s\"",
               known ? symbol : "?", cudaVersion, (unsigned long long)flags,
               entry ? entry->symbol : "");
    return CUDA_SUCCESS;
}

CUresult impl_cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags)
{
    const struct entry *entry;
    bool known;

    if (!symbol || !pfn || flags > 2 + 1)
        return CUDA_ERROR_INVALID_VALUE;
    entry =
        find(symbol, cudaVersion, flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &known);
    log_detail("\"symbol\":\"%.80s\",\"version\":%d,\"flags\":%llu,\"found\":\"%s\"",
               known ? symbol : "?", cudaVersion, (unsigned long long)flags,
               entry ? entry->symbol : "");
    if (!entry)
        return CUDA_ERROR_NOT_FOUND;
    *pfn = (void *)(uintptr_t)entry->fn;
    return CUDA_SUCCESS;
}
