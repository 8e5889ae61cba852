/* SPDX-License-Identifier: Apache-2.0 */
/* Where a kernel's parameters lie in its packed buffer, and how that is put together from an image. Any thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LAYOUT_MAX_PARAMS 256   /* of a kernel; a HookSpec can name no parameter beyond them */
#define LAYOUT_MAX_BYTES  32764 /* all parameters of a kernel together; no driver takes more */

struct param_place {
    uint32_t offset, size; /* bytes */
};

struct params_layout {
    uint32_t n;
    struct param_place at[];
};

/* A layout under construction. Initialise with zeros. */
struct layout_draft {
    uint32_t n; /* the highest parameter so far, and one */
    bool bad;   /* what was added contradicts itself: no layout */
    bool known[LAYOUT_MAX_PARAMS];
    struct param_place at[LAYOUT_MAX_PARAMS];
};

/* Adds parameter @i, in any order; those beyond LAYOUT_MAX_PARAMS are left out. */
void layout_add(struct layout_draft *draft, uint32_t i, uint64_t offset, uint64_t size);

/**
 * layout_finish() - is it the layout of a kernel?
 * Return: false where a parameter is missing, lies on another one or ends beyond @n_bytes.
 */
bool layout_finish(const struct layout_draft *draft, uint64_t n_bytes);

/* A copy of @n places. Return: NULL without memory; free() it. */
struct params_layout *layout_new(const struct param_place *at, uint32_t n);

/* Who wants to know of the kernels in an image. */
struct layout_sink {
    /* @name: @n_name bytes, not terminated; both it and @at are borrowed during the call */
    void (*kernel)(void *ctx, const char *name, size_t n_name, const struct param_place *at,
                   uint32_t n);
    void *ctx;
};
