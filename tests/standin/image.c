/* SPDX-License-Identifier: Apache-2.0 */
#include "array.h"
#include "image.h"
#include "conditional.h"

#include "ptx/ptx.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct image {
    int refs; /* lock held */
    struct ptx_module *ptx;
    unsigned n_kernels;
    struct kernel_info *kernels;
    struct kernel_param *params; /* of all kernels */
    size_t *global_offsets;
    size_t globals_size;
};

/* A kernel that pauses does so between stores, so that a reader can see every half-done state. */
static void pause_randomly(void)
{
    static _Thread_local uint64_t state __attribute__((tls_model("initial-exec")));

    if (!state)
        state = driver.config.delay_seed ^ (uintptr_t)&state;
    if (random_next(&state) % driver.config.pause_one_in == 0)
        nanosleep(&(struct timespec){ .tv_nsec = (long)(random_next(&state) % 50000) }, NULL);
}

void image_init(void)
{
    ptx_set_memory(&(struct ptx_memory){
        .device_base = DEVICE_BASE,
        .device_size = MAX_DEVICES * DEVICE_SPAN,
        .alias_delta = ALIAS_DELTA,
        .host_ok = memory_host_ok,
    });
    ptx_set_conditional = condition_set;
    ptx_print = print_add;
    ptx_texture_find = texture_find;
    if (driver.config.pause_one_in)
        ptx_pause = pause_randomly;
}

static CUresult status_result(int status)
{
    switch (status) {
    case PTX_OK: return CUDA_SUCCESS;
    case PTX_E_SYNTAX:
    case PTX_E_UNSUPPORTED: return CUDA_ERROR_INVALID_PTX;
    case PTX_E_COMPILE: return CUDA_ERROR_JIT_COMPILER_NOT_FOUND;
    case PTX_E_MEMORY: return CUDA_ERROR_OUT_OF_MEMORY;
    case PTX_E_FAULT: return CUDA_ERROR_ILLEGAL_ADDRESS;
    case PTX_E_TRAP: return CUDA_ERROR_LAUNCH_FAILED;
    default: return CUDA_ERROR_UNKNOWN;
    }
}

static bool image_describe(struct image *image)
{
    size_t n_params = 0, at = 0;

    image->n_kernels = (unsigned)ptx_module_n_kernels(image->ptx);
    for (unsigned i = 0; i < image->n_kernels; i++)
        n_params += ptx_kernel_info(ptx_module_kernel(image->ptx, i))->n_params;
    image->kernels = calloc(image->n_kernels + 1, sizeof(*image->kernels));
    image->params = calloc(n_params + 1, sizeof(*image->params));
    image->global_offsets = calloc(ptx_module_n_globals(image->ptx) + 1, sizeof(size_t));
    if (!image->kernels || !image->params || !image->global_offsets)
        return false;
    for (unsigned i = 0; i < image->n_kernels; i++) {
        const struct ptx_kernel_info *from = ptx_kernel_info(ptx_module_kernel(image->ptx, i));

        image->kernels[i] = (struct kernel_info){
            .name = from->name,
            .n_params = from->n_params,
            .params = image->params + at,
            .params_bytes = from->params_bytes,
            .static_shared = from->static_shared,
            .local_bytes = from->local_bytes,
            .max_threads = (int)from->max_threads,
            .registers = (int)from->registers,
        };
        for (unsigned j = 0; j < from->n_params; j++, at++)
            image->params[at] =
                (struct kernel_param){ from->params[j].offset, from->params[j].size };
    }
    for (size_t i = 0; i < ptx_module_n_globals(image->ptx); i++) {
        const struct ptx_global *global = ptx_module_global(image->ptx, i);
        size_t align = global->align > 256 ? global->align : 256;

        image->globals_size = (image->globals_size + align - 1) / align * align;
        image->global_offsets[i] = image->globals_size;
        image->globals_size += global->size;
    }
    return true;
}

CUresult image_load(const char *text, size_t n_text, struct image **out, char *message,
                    size_t n_message)
{
    struct ptx_options options = { .pausable = driver.config.pause_one_in != 0 };
    struct image *image = calloc(1, sizeof(*image));
    CUresult res;

    if (!image)
        return CUDA_ERROR_OUT_OF_MEMORY;
    image->refs = 1;
    res = status_result(ptx_module_load(text, n_text, &options, &image->ptx, message, n_message));
    if (res == CUDA_SUCCESS && !image_describe(image))
        res = CUDA_ERROR_OUT_OF_MEMORY;
    if (res != CUDA_SUCCESS) {
        image_unref(image);
        return res;
    }
    *out = image;
    return CUDA_SUCCESS;
}

struct image *image_ref(struct image *image)
{
    image->refs++;
    return image;
}

void image_unref(struct image *image)
{
    if (!image || --image->refs > 0)
        return;
    if (image->ptx)
        ptx_module_free(image->ptx);
    free(image->kernels);
    free(image->params);
    free(image->global_offsets);
    free(image);
}

unsigned image_n_kernels(const struct image *image)
{
    return image->n_kernels;
}

const struct kernel_info *image_kernel(const struct image *image, unsigned index)
{
    return &image->kernels[index];
}

size_t image_globals_size(const struct image *image)
{
    return image->globals_size;
}

static void write_address(void *ctx, uint64_t address, uint64_t value)
{
    (void)ctx;
    memcpy(memory_host(address), &value, sizeof(value));
}

void image_globals_bind(struct image *image, uint64_t device)
{
    for (size_t i = 0; i < ptx_module_n_globals(image->ptx); i++) {
        const struct ptx_global *global = ptx_module_global(image->ptx, i);
        uint64_t address = device + image->global_offsets[i];

        ptx_module_bind(image->ptx, i, address);
        if (global->init)
            memcpy(memory_host(address), global->init, global->size);
        else
            memset(memory_host(address), 0, global->size);
    }
    ptx_module_init_addresses(image->ptx, write_address, NULL);
}

bool image_global(const struct image *image, const char *name, size_t *offset, size_t *size)
{
    for (size_t i = 0; i < ptx_module_n_globals(image->ptx); i++) {
        const struct ptx_global *global = ptx_module_global(image->ptx, i);

        if (strcmp(global->name, name) == 0) {
            *offset = image->global_offsets[i];
            *size = global->size;
            return true;
        }
    }
    return false;
}

/* No driver says so: what a kernel of a test cannot do ends in a trap. Once a process. */
static void say_trap(const char *kernel)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;

    if (!atomic_flag_test_and_set(&said))
        fprintf(stderr, "standin: the kernel %s trapped\n", kernel);
}

CUresult image_run(const struct image *image, unsigned index, const struct kernel_work *kernel,
                   uint64_t first_block, uint64_t n_blocks, struct ptx_together *together,
                   const struct ptx_dependents *dependents)
{
    struct ptx_fault fault = { 0 };
    struct ptx_grid grid = { .dynamic_shared = kernel->shared_bytes,
                             .first_block = first_block,
                             .n_blocks = n_blocks,
                             .together = together,
                             .dependents = dependents,
                             .owner = kernel->function->module->ctx };

    memcpy(grid.grid, kernel->grid, sizeof(grid.grid));
    memcpy(grid.block, kernel->block, sizeof(grid.block));
    int status = ptx_launch(ptx_module_kernel(image->ptx, index), &grid, kernel->params, &fault);
    if (status == PTX_E_TRAP)
        say_trap(kernel->function->name);
    return status_result(status);
}
