/* SPDX-License-Identifier: Apache-2.0 */
/*
 * print.c - what kernels print: kept in a buffer of the context, and written to stdout where a driver does
 *
 * CUDA C++ Programming Guide, "Formatted Output": at launches, synchronisations, copies that wait, module loads and
 * unloads, before callbacks, when the context is destroyed; not when the process exits. Of more than
 * CU_LIMIT_PRINTF_FIFO_SIZE bytes the oldest are lost.
 */
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct print {
    struct print *next;
    size_t n;
    char text[];
};

/* Workers add without driver.lock; taken inside of it, never the other way round. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void drop_oldest(struct context *ctx)
{
    struct print *oldest = ctx->prints;

    ctx->prints = oldest->next;
    ctx->n_printed -= oldest->n;
    free(oldest);
}

/** print_add() - a kernel of @owner, a context, has printed; any thread, no lock held */
void print_add(void *owner, const char *text, size_t n)
{
    struct context *ctx = owner;
    struct print *print = malloc(sizeof(*print) + n);

    if (!print)
        return;
    print->next = NULL;
    print->n = n;
    memcpy(print->text, text, n);
    pthread_mutex_lock(&lock);
    *(ctx->prints ? &ctx->last_print->next : &ctx->prints) = print;
    ctx->last_print = print;
    ctx->n_printed += n;
    while (ctx->prints && ctx->n_printed > ctx->limits[CU_LIMIT_PRINTF_FIFO_SIZE])
        drop_oldest(ctx);
    pthread_mutex_unlock(&lock);
}

/** print_flush() - write what the context's kernels have printed so far; with or without driver.lock */
void print_flush(struct context *ctx)
{
    struct print *prints;

    pthread_mutex_lock(&lock);
    prints = ctx->prints;
    ctx->prints = NULL;
    ctx->n_printed = 0;
    pthread_mutex_unlock(&lock);
    if (!prints)
        return;
    while (prints) {
        struct print *next = prints->next;

        fwrite(prints->text, 1, prints->n, stdout);
        free(prints);
        prints = next;
    }
    fflush(stdout);
}
