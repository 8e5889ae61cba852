/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Integer expressions of HookSpecs: offsets, counts, strides, layers. 64-bit signed; overflow,
 * division by zero and parameters that a launch does not have are errors, never values.
 * An expr is immutable after parsing: any thread may evaluate it; evaluation never allocates.
 * Source: docs/hookspec.md, "Expressions".
 */
#pragma once

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

/* Bits of expr_uses(): */
enum {
    EXPR_USES_LAUNCH = 1, /* grid, block, shared or a parameter */
    EXPR_USES_OCC = 2,
};

/* Which of them a value depends on. */
unsigned expr_uses(const struct expr *e);

/* NULL is fine. */
void expr_free(struct expr *e);

#define EXPR_MAX_TEXT   4096u  /* bytes */
#define EXPR_MAX_OPS    512u   /* numbers, names and operators, after constants were folded */
#define EXPR_MAX_DEPTH  64u    /* nested parentheses, signs and calls */
#define EXPR_MAX_ARG    255u   /* highest parameter index */
#define EXPR_MAX_OFFSET 32767u /* bytes: no driver takes more parameters than 32,764 bytes */

/* A variable, replaced by its value while parsing. */
struct expr_var {
    const char *name;
    int64_t value;
};

/* true if @name means something in expressions, so that no variable may be called so */
int expr_is_reserved(const char *name);

struct expr_error {
    size_t offset; /* in the text, of what is complained about */
    char msg[256];
};

enum { EXPR_E_SYNTAX = 16 };

/**
 * expr_parse() - compile an expression
 * @text: need not be NUL-terminated; @vars are borrowed during the call
 * @error: filled in where EXPR_E_SYNTAX is returned
 * @out: to be freed with expr_free(); written on success only
 * Any thread. Return: 0, EXPR_E_SYNTAX (also for what overflows wherever it is evaluated), -ENOMEM.
 */
int expr_parse(const char *text, size_t n_text, const struct expr_var *vars, size_t n_vars,
               struct expr_error *error, struct expr **out);

/* As expr_parse() for a place that holds an address: arg[I], arg[I][OFFSET] or param[OFFSET]. */
int expr_parse_ref(const char *text, size_t n_text, const struct expr_var *vars, size_t n_vars,
                   struct expr_error *error, struct expr_ref *out);

/**
 * expr_product() - a new expression: the product of all @factors and of @scale
 * @factors: copied, not taken
 * Return: 0, EXPR_E_OVERFLOW (wherever it is evaluated), -ENOMEM.
 */
int expr_product(const struct expr *const *factors, size_t n_factors, int64_t scale,
                 struct expr **out);

/* The value of a constant expression; 0 for any other. */
int64_t expr_constant(const struct expr *e);

/* true if both are computed in the same way (after folding, not algebra) */
int expr_same(const struct expr *a, const struct expr *b);
