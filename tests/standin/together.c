/* SPDX-License-Identifier: Apache-2.0 */
/*
 * together.c - cooperative launches: every block has a thread of its own, so that blocks may wait for each other
 */
#include "driver.h"
#include "image.h"
#include "ptx/ptx.h"

#include <stdlib.h>

struct block {
    pthread_t thread;
    bool started;
    const struct kernel_work *kernel;
    struct ptx_together *together;
    uint64_t index;
    CUresult result;
};

static void *run(void *data)
{
    struct block *block = data;

    block->result =
        image_run(block->kernel->function->module->image, block->kernel->function->index,
                  block->kernel, block->index, 1, block->together, NULL);
    return NULL;
}

/** together_run() - all blocks of @kernel at once; returns when the last has ended */
CUresult together_run(const struct kernel_work *kernel)
{
    uint64_t n = (uint64_t)kernel->grid[0] * kernel->grid[1] * kernel->grid[2];
    struct ptx_together together = { .stop = 0 };
    struct block *blocks = calloc(n, sizeof(*blocks));
    CUresult res = CUDA_SUCCESS;

    if (!blocks)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (uint64_t i = 0; i < n && res == CUDA_SUCCESS; i++) {
        blocks[i] = (struct block){ .kernel = kernel, .together = &together, .index = i };
        blocks[i].started = !pthread_create(&blocks[i].thread, NULL, run, &blocks[i]);
        if (!blocks[i].started) {
            ptx_stop(&together);
            res = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    for (uint64_t i = 0; i < n && blocks[i].started; i++) {
        pthread_join(blocks[i].thread, NULL);
        if (res == CUDA_SUCCESS)
            res = blocks[i].result;
    }
    free(blocks);
    return res;
}

/** together_fits() - can so many blocks be resident at once; lock held */
CUresult together_fits(const struct kernel_work *kernel)
{
    uint64_t n = (uint64_t)kernel->grid[0] * kernel->grid[1] * kernel->grid[2];
    unsigned threads = kernel->block[0] * kernel->block[1] * kernel->block[2];
    int each = function_occupancy(kernel->function, (int)threads, kernel->shared_bytes);

    return n <= (uint64_t)each * MULTIPROCESSORS ? CUDA_SUCCESS
                                                 : CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
}
