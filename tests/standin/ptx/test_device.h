/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small device for the tests of the translator: a block of memory that kernels see at one address
 * and the host at another, and modules loaded from text. One a test program; not for threads.
 */
#ifndef STANDIN_PTX_TEST_DEVICE_H
#define STANDIN_PTX_TEST_DEVICE_H

#include <check.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ptx.h"

#define DEVICE_BASE  0x7f0000000000ull
#define DEVICE_BYTES (16u << 20)
#define PTX_HEAD     ".version 8.0\n.target sm_90\n.address_size 64\n"

static unsigned char *device_memory;               /* where the host sees DEVICE_BASE */
static uint64_t device_host_ok, device_host_bytes; /* host memory that kernels may touch */

/* Also before the tests begin, where Check cannot fail. */
#define DEVICE_MUST(what, ...)                                                                     \
    do {                                                                                           \
        if (!(what)) {                                                                             \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fputc('\n', stderr);                                                                   \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

static bool device_may_touch_host(uint64_t address, size_t n)
{
    return address - device_host_ok < device_host_bytes &&
           n <= device_host_bytes - (address - device_host_ok);
}

static inline void device_init(void)
{
    if (device_memory)
        return;
    device_memory =
        mmap(NULL, DEVICE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    DEVICE_MUST(device_memory != MAP_FAILED, "no memory");
    struct ptx_memory memory = {
        .device_base = DEVICE_BASE,
        .device_size = DEVICE_BYTES,
        .alias_delta = (int64_t)((uint64_t)(uintptr_t)device_memory - DEVICE_BASE),
        .host_ok = device_may_touch_host,
    };
    ptx_set_memory(&memory);
}

static inline void *device_at(uint64_t address)
{
    return device_memory + (address - DEVICE_BASE);
}

/* Compiled kernels go to a folder of this run alone, unless the caller has named one. */
static char device_cache[64];

static inline void device_remove_cache(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", device_cache);
    if (system(command))
        fprintf(stderr, "%s is left\n", device_cache);
}

static inline void device_fresh_cache(void)
{
    snprintf(device_cache, sizeof device_cache, "/tmp/test-ptx-XXXXXX");
    if (!mkdtemp(device_cache))
        abort();
    setenv("DMI_STANDIN_CACHE", device_cache, 1);
}

static inline struct ptx_module *device_load(const char *text)
{
    struct ptx_module *module = NULL;
    char log[4096];
    device_init();
    int r = ptx_module_load(text, strlen(text), NULL, &module, log, sizeof log);
    DEVICE_MUST(r == PTX_OK, "status %d: %s", r, log);
    return module;
}

static inline const struct ptx_kernel *device_kernel(const struct ptx_module *module,
                                                     const char *name)
{
    for (size_t i = 0; i < ptx_module_n_kernels(module); i++)
        if (!strcmp(ptx_kernel_info(ptx_module_kernel(module, i))->name, name))
            return ptx_module_kernel(module, i);
    DEVICE_MUST(false, "no kernel %s", name);
    return NULL;
}

static inline int device_run(const struct ptx_kernel *kernel, unsigned n_blocks, unsigned n_threads,
                             const void *params)
{
    struct ptx_grid grid = { .grid = { n_blocks, 1, 1 }, .block = { n_threads, 1, 1 } };
    return ptx_launch(kernel, &grid, params, NULL);
}

#endif
