/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory of a capture context that every kind of context has on the host: descriptors, lists of rows and counters of edits in one mapping,
 * and the ring over it. Thread: the one that creates the capture context.
 */
#pragma once

#include "core/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct context;

/* Slots of the ring. */
uint32_t memory_slots(void);

/* Bytes of the ring's payload. @n_free: of the memory that it is to lie in. */
uint64_t memory_payload_bytes(uint64_t n_free);

/* Bytes of the mapping. */
size_t memory_map_bytes(uint32_t n_slots);

/* Memory that starts as zeros, which a child of fork does not have. Return: NULL: there is none. */
void *memory_map(size_t n_bytes);

/* The ring, and the lists of rows, over the context's mapping, which actions know by @context->desc_device. Return: 0 or -errno. */
int memory_init(struct err *err, struct context *context, uint32_t n_slots, uint64_t n_bytes);

/* The counters of edits in that mapping. */
void memory_init_edits(struct context *context);

/* Gives back what memory_init() got hold of, and (@map) the mapping. */
void memory_forget(struct context *context, bool map);
