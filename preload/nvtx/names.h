/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of NVTX ranges and what they mean to the spec: looked up once a name, kept for good. Thread: any; takes a lock.
 */
#pragma once

#include "policy/spec.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Never freed: ranges that are open look at it. */
struct nvtx_name {
    struct nvtx_name *next; /* of the same hash */
    uint64_t hash;
    const char *text;
    int32_t layer; /* the number in it, -1: none */
    int kind;      /* of the forward that such a range begins, -1: none */
    uint32_t n_sites;
    uint16_t sites[]; /* in spec order */
};

/* Does the name concern the spec? */
static inline bool nvtx_name_concerns(const struct nvtx_name *name)
{
    return name->n_sites || name->kind >= 0;
}

/* From here on ranges are looked at, by @spec, which is never freed. Once. */
void nvtx_names_use(const struct spec *spec);

/* Are they looked at? */
bool nvtx_names_wanted(void);

/**
 * nvtx_name_of() - the name in the text of a range
 * @text: of @n bytes, which may be anything
 * Return: never NULL; without memory, or after too many names, one that concerns nobody, and the sites that it would have
 * concerned are switched off.
 */
const struct nvtx_name *nvtx_name_of(const char *text, size_t n);

/**
 * nvtx_names_why() - why no launch was one of @site, which asks for a range
 * Writes a sentence to @buffer, with the nearest name that was seen.
 */
void nvtx_names_why(const struct spec *spec, uint32_t site, char *buffer, size_t n_buffer);

/* After fork, in the child. */
void nvtx_names_reset(void);
