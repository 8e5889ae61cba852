/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Integer expressions of HookSpecs: offsets, counts, strides, layers. 64-bit signed; overflow,
 * division by zero and parameters that a launch does not have are errors, never values.
 * An expr is immutable after parsing: any thread may evaluate it; evaluation never allocates.
 * Source: docs/hookspec.md, "Expressions".
 */
#ifndef POLICY_EXPR_H
#define POLICY_EXPR_H

#include "core/err.h"

#include <stddef.h>
#include <stdint.h>

struct expr;

/* A place among a launch's parameters: `arg[2]`, `arg[2][24]`, or `param[40]`. */
struct expr_ref {
    int32_t arg;     /* parameter index, -1: @offset counts from the packed buffer's start */
    uint32_t offset; /* bytes within that parameter, or within the buffer */
};

/* What an expression may look at. Borrowed during expr_eval(). */
struct expr_env {
    const uint32_t *grid;  /* [3], in blocks */
    const uint32_t *block; /* [3], in threads */
    uint64_t shared_bytes; /* dynamic shared memory */
    int64_t occ;           /* occurrence of the site within its forward, 0-based */
    /* Copies n bytes of a parameter to dst. Return: 0, or <0 if the launch has no such bytes. */
    int (*param)(void *ctx, struct expr_ref ref, void *dst, size_t n);
    void *param_ctx;
};

enum {
    EXPR_E_OVERFLOW = 1,
    EXPR_E_DIVIDE = 2, /* by zero */
    EXPR_E_PARAM = 3,  /* no such parameter in this launch */
};

/**
 * expr_eval() - the value of @e at one launch
 * Return: 0, EXPR_E_OVERFLOW, EXPR_E_DIVIDE or EXPR_E_PARAM; @out is written on success only.
 */
int expr_eval(const struct expr *e, const struct expr_env *env, int64_t *out);

/* true if @e needs nothing of the launch, so that its value is the same everywhere */
int expr_is_constant(const struct expr *e);

void expr_free(struct expr *e);

#endif
