/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/context/bank.h"

#include "core/grow.h"
#include "preload/base/driver.h"
#include "preload/context/context.h"
#include "preload/session/session.h"

#include <dmi/edit.h>

#include <errno.h>
#include <stdlib.h>

#define DROP_THREADS 256u
#define DROP_BLOCKS  64u

/* Return: 0, or -EIO with the call's name in @err. */
static int check(struct err *err, CUresult r, const char *call)
{
    return r == CUDA_SUCCESS ? 0 : err_set(err, -EIO, "%s gave error %d", call, (int)r);
}

int bank_init(struct err *err, struct context *c)
{
    struct context_bank *bank = &c->bank;
    uint64_t n = session.spec->bank_bytes / (sizeof(struct dmi_bank_entry) + DMI_BANK_CELL_BYTES);
    n -= n % DMI_BANK_BUCKET;
    if (!n)
        return 0;
    uint64_t n_entries = n * sizeof(struct dmi_bank_entry);
    int r = check(err, driver_table.cuMemAlloc_v2(&bank->at, n_entries + n * DMI_BANK_CELL_BYTES),
                  "cuMemAlloc_v2");
    if (!r)
        r = check(err, driver_table.cuMemsetD8Async(bank->at, 0, n_entries, c->stream),
                  "cuMemsetD8Async");
    if (!r)
        r = check(err, driver_table.cuStreamSynchronize(c->stream), "cuStreamSynchronize");
    bank->n_cells = (uint32_t)n;
    return r;
}

void bank_give_back(struct context *c)
{
    if (c->bank.at)
        driver_table.cuMemFree_v2(c->bank.at);
    c->bank.at = 0;
}

void bank_forget(struct context *c)
{
    free(c->bank.dropped);
    c->bank = (struct context_bank){ 0 };
}

/* Without memory its rows stay: no other donor gets its number, so they only take room. */
static void drop_in(struct context *c, void *arg)
{
    struct context_bank *bank = &c->bank;
    pthread_mutex_lock(&c->lock);
    if (bank->at && !GROW(bank->dropped, bank->n_dropped, bank->room_dropped))
        bank->dropped[bank->n_dropped++] = *(uint32_t *)arg;
    pthread_mutex_unlock(&c->lock);
}

void bank_drop(uint32_t donor)
{
    context_each(drop_in, &donor);
}

static int by_number(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* One launch for donors whose numbers follow one another. Return: how many that was. */
static size_t launch_drop(struct context *c, const uint32_t *donors, size_t n)
{
    size_t k = 1;
    while (k < n && donors[k] == donors[0] + k)
        k++;
    struct dmi_bank_drop drop = {
        .bank = c->bank.at, .n_cells = c->bank.n_cells, .first = donors[0], .last = donors[k - 1]
    };
    void *params[] = { &drop };
    driver_table.cuLaunchKernel(c->bank.drop, DROP_BLOCKS, 1, 1, DROP_THREADS, 1, 1, 0, c->stream,
                                params, NULL);
    return k;
}

void bank_follow(struct context *c)
{
    struct context_bank *bank = &c->bank;
    pthread_mutex_lock(&c->lock);
    uint32_t *donors = bank->dropped;
    size_t n = bank->n_dropped;
    bank->dropped = NULL;
    bank->n_dropped = bank->room_dropped = 0;
    pthread_mutex_unlock(&c->lock);
    if (n)
        qsort(donors, n, sizeof *donors, by_number);
    for (size_t i = 0; i < n;)
        i += launch_drop(c, &donors[i], n - i);
    free(donors);
}
