/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/context/bank.h"

#include "core/grow.h"
#include "core/sorted.h"
#include "preload/context/context.h"
#include "preload/context/side_ops.h"
#include "preload/session/session.h"

#include <dmi/edit.h>

#include <errno.h>
#include <stdlib.h>

/* Return: 0, or -EIO with @what failed in @err. */
static int check(struct err *err, CUresult r, const char *what)
{
    return r == CUDA_SUCCESS ? 0 : err_set(err, -EIO, "%s: error %d", what, (int)r);
}

static uint64_t bytes_of(const struct context_bank *bank)
{
    return bank->n_cells * (uint64_t)(sizeof(struct dmi_bank_entry) + DMI_BANK_CELL_BYTES);
}

/* Rows of donors from the first to the last number. */
static CUresult drop(struct context *c, uint32_t first, uint32_t last)
{
    struct dmi_bank_drop drop = {
        .bank = c->bank.at, .n_cells = c->bank.n_cells, .first = first, .last = last
    };
    return c->side->drop(c, &drop);
}

int bank_init(struct err *err, struct context *c)
{
    struct context_bank *bank = &c->bank;
    uint64_t n = session.spec->bank_bytes / (sizeof(struct dmi_bank_entry) + DMI_BANK_CELL_BYTES);
    n -= n % DMI_BANK_BUCKET;
    if (!n)
        return 0;
    bank->n_cells = (uint32_t)n;
    int r = check(err, c->side->alloc(&bank->at, bytes_of(bank)), "memory for the bank");
    if (!r) /* what lies there is no row */
        r = check(err, drop(c, 0, UINT32_MAX), "an empty bank");
    if (!r)
        r = check(err, c->side->finish(c), "an empty bank");
    return r;
}

void bank_give_back(struct context *c)
{
    if (c->bank.at)
        c->side->free(c->bank.at, bytes_of(&c->bank));
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

/* At once, of donors whose numbers follow one another. Return: how many that was. */
static size_t drop_some(struct context *c, const uint32_t *donors, size_t n)
{
    size_t k = 1;
    while (k < n && donors[k] == donors[0] + k)
        k++;
    drop(c, donors[0], donors[k - 1]);
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
        qsort(donors, n, sizeof *donors, order_u32);
    for (size_t i = 0; i < n;)
        i += drop_some(c, &donors[i], n - i);
    free(donors);
}
