/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The program that an expression is compiled to: postfix operations, for a loop on a fixed stack. Shared by
 * expr.c (evaluation), expr_build.c (a program is put together, constants are folded) and expr_parse.c; nobody else
 * includes it. A builder belongs to one thread.
 */
#pragma once

#include "policy/expr.h"

#include <stdint.h>

enum op_kind {
    OP_CONST,
    OP_GRID, /* .imm: axis */
    OP_BLOCK,
    OP_SHARED,
    OP_OCC,
    OP_PARAM,
    OP_NEG,
    OP_ADD, /* from here on: two operands */
    OP_SUB,
    OP_MUL,
    OP_DIV,
    OP_MOD,
    OP_MIN,
    OP_MAX,
    OP_CEIL_DIV,
};

struct op {
    uint8_t kind;
    uint8_t n_bytes;   /* OP_PARAM: width of the integer that is read */
    uint8_t is_signed; /* OP_PARAM */
    union {
        int64_t imm;
        struct expr_ref ref;
    };
};

/* A product of dimensions nests one level deeper than its factors: expr_product(). */
#define STACK_MAX (EXPR_MAX_DEPTH * 2 + 4)

struct expr {
    uint32_t n_ops;
    uint32_t uses;
    struct op ops[];
};

struct code_builder {
    struct op *ops;
    uint32_t n_ops, max_ops;
    uint32_t uses;
    uint32_t depth, deepest; /* of the evaluation stack */
};

/**
 * expr_apply() - the value of one operation on two operands, as evaluation and folding compute it
 * @kind: OP_ADD and those after it
 * Return: 0, EXPR_E_OVERFLOW or EXPR_E_DIVIDE.
 */
int expr_apply(uint8_t kind, int64_t a, int64_t b, int64_t *out);

/**
 * expr_emit() - append an operation, or fold it with the constants that it works on
 * Return: 0, EXPR_E_OVERFLOW, EXPR_E_DIVIDE, or -E2BIG if the builder has no room.
 */
int expr_emit(struct code_builder *b, struct op op);

/**
 * expr_build() - the finished expression
 * Return: 0 (@out is to be freed with expr_free()) or -ENOMEM.
 */
int expr_build(const struct code_builder *b, struct expr **out);
