/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Evaluation of compiled expressions: one loop over the program. Source: docs/hookspec.md, "Expressions".
 */
#include "policy/expr.h"

#include "core/any.h"
#include "policy/expr_code.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>

int expr_apply(uint8_t kind, int64_t a, int64_t b, int64_t *out)
{
    switch (kind) {
    case OP_ADD: return __builtin_add_overflow(a, b, out) ? EXPR_E_OVERFLOW : 0;
    case OP_SUB: return __builtin_sub_overflow(a, b, out) ? EXPR_E_OVERFLOW : 0;
    case OP_MUL: return __builtin_mul_overflow(a, b, out) ? EXPR_E_OVERFLOW : 0;
    case OP_MIN: *out = a < b ? a : b; return 0;
    case OP_MAX: *out = a > b ? a : b; return 0;
    default: break;
    }
    if (b == 0)
        return EXPR_E_DIVIDE;
    if (b == -1) { /* INT64_MIN / -1 traps on x86, and so does its remainder */
        *out = 0;
        return kind == OP_MOD || !__builtin_sub_overflow((int64_t)0, a, out) ? 0 : EXPR_E_OVERFLOW;
    }
    *out = kind == OP_MOD ? a % b : a / b;
    if (kind == OP_CEIL_DIV && a % b != 0 && (a < 0) == (b < 0))
        (*out)++; /* C truncates towards zero, which is upwards for a negative quotient only */
    return 0;
}

static int read_param(const struct op *op, const struct expr_env *env, int64_t *out)
{
    uint64_t u = 0; /* devices, and all hosts that have one, are little-endian */
    static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the first bytes are the low ones");
    if (!env->param || env->param(env->param_ctx, op->ref, &u, op->n_bytes) != 0)
        return EXPR_E_PARAM;
    if (op->is_signed) {
        unsigned shift = 64 - 8 * op->n_bytes;
        *out = (int64_t)(u << shift) >> shift;
        return 0;
    }
    if (u > INT64_MAX)
        return EXPR_E_OVERFLOW;
    *out = (int64_t)u;
    return 0;
}

int expr_eval(const struct expr *e, const struct expr_env *env, int64_t *out)
{
    int64_t stack[STACK_MAX];
    size_t top = 0; /* the parser has checked that it stays within the stack */
    for (uint32_t i = 0; i < e->n_ops; i++) {
        const struct op *op = &e->ops[i];
        int rc = 0;
        switch (op->kind) {
        case OP_CONST: stack[top++] = op->imm; break;
        case OP_GRID: stack[top++] = env->grid[op->imm]; break;
        case OP_BLOCK: stack[top++] = env->block[op->imm]; break;
        case OP_SHARED:
            if (env->shared_bytes > INT64_MAX)
                return EXPR_E_OVERFLOW;
            stack[top++] = (int64_t)env->shared_bytes;
            break;
        case OP_OCC: stack[top++] = env->occ; break;
        case OP_PARAM: rc = read_param(op, env, &stack[top++]); break;
        case OP_NEG: rc = expr_apply(OP_SUB, 0, stack[top - 1], &stack[top - 1]); break;
        default:
            /* two operands */
            top--;
            rc = expr_apply(op->kind, stack[top - 1], stack[top], &stack[top - 1]);
        }
        if (rc)
            return rc;
    }
    *out = stack[0];
    return 0;
}

unsigned expr_uses(const struct expr *e)
{
    return e->uses;
}

int expr_is_constant(const struct expr *e)
{
    return e->uses == 0;
}

int64_t expr_constant(const struct expr *e)
{
    /* What uses nothing was folded, whatever its form. */
    return e->n_ops == 1 && e->ops[0].kind == OP_CONST ? e->ops[0].imm : 0;
}

static bool op_same(const struct op *a, const struct op *b)
{
    if (a->kind != b->kind)
        return false;
    if (a->kind == OP_PARAM)
        return a->n_bytes == b->n_bytes && a->is_signed == b->is_signed &&
               a->ref.arg == b->ref.arg && a->ref.offset == b->ref.offset;
    return a->imm == b->imm;
}

int expr_same(const struct expr *a, const struct expr *b)
{
    if (!a || !b)
        return a == b;
    if (a->n_ops != b->n_ops)
        return 0;
    return ALL(i, a->n_ops, op_same(&a->ops[i], &b->ops[i]));
}

void expr_free(struct expr *e)
{
    free(e);
}
