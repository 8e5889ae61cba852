/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who follows the NVTX ranges of the application: the rows of one table, of which the spec's ranges are the first. A consumer
 * that wanted nothing when a module attached is not called. Thread: any.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What is NULL but @wants is not called. */
struct consumer {
    bool (*wants)(void);
    void (*push)(const void *domain, const char *text, size_t n);
    void (*pop)(const void *domain);
    void (*start)(const void *domain, uint64_t id, const char *text, size_t n);
    void (*end)(const void *domain, uint64_t id);
    uint32_t wanted; /* 1: it did when some module attached; atomic */
};

/* One consumer more, from a layer above, two at most. Before modules attach; it stays for good. Thread: one at a time. */
void consumers_use(struct consumer *consumer);

/* Does any consumer want ranges? Asks each of them: once a module, before the module's first call. */
bool consumers_want(void);

/* A range with the text @text, of @n bytes, is pushed in @domain (NULL: the default one), or the last one popped. */
void consumers_push(const void *domain, const char *text, size_t n);
void consumers_pop(const void *domain);

/* A range is started, or ended by any thread. @id: unique within the domain while it is open. */
void consumers_start(const void *domain, uint64_t id, const char *text, size_t n);
void consumers_end(const void *domain, uint64_t id);
