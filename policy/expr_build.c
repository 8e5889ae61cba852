/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Putting an expression's program together, with constants folded on the way.
 * Source: docs/hookspec.md, "Expressions".
 */
#include "core/err.h"
#include "policy/expr_code.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

int expr_emit(struct code_builder *b, struct op op)
{
    bool binary = op.kind >= OP_ADD;
    struct op *last = b->n_ops ? &b->ops[b->n_ops - 1] : NULL;
    if (op.kind == OP_NEG && last->kind == OP_CONST)
        return expr_apply(OP_SUB, 0, last->imm, &last->imm);
    /* If the last operation pushes a constant, that constant is all of the right operand; the same for the left. */
    if (binary && last->kind == OP_CONST && b->ops[b->n_ops - 2].kind == OP_CONST) {
        int64_t value = 0;
        TRY(expr_apply(op.kind, b->ops[b->n_ops - 2].imm, last->imm, &value));
        b->n_ops--;
        b->depth--;
        b->ops[b->n_ops - 1].imm = value;
        return 0;
    }
    if ((op.kind == OP_DIV || op.kind == OP_MOD || op.kind == OP_CEIL_DIV) &&
        last->kind == OP_CONST && last->imm == 0)
        return EXPR_E_DIVIDE;
    if (b->n_ops == b->max_ops)
        return -E2BIG;
    b->ops[b->n_ops++] = op;
    if (binary)
        b->depth--;
    else if (op.kind != OP_NEG)
        b->depth++;
    if (b->depth > b->deepest)
        b->deepest = b->depth;
    if (op.kind == OP_OCC)
        b->uses |= EXPR_USES_OCC;
    else if (op.kind > OP_CONST && op.kind < OP_NEG)
        b->uses |= EXPR_USES_LAUNCH;
    return 0;
}

int expr_build(const struct code_builder *b, struct expr **out)
{
    struct expr *e = calloc(1, sizeof *e + b->n_ops * sizeof e->ops[0]);
    if (!e)
        return -ENOMEM;
    e->n_ops = b->n_ops;
    e->uses = b->uses;
    memcpy(e->ops, b->ops, b->n_ops * sizeof e->ops[0]);
    *out = e;
    return 0;
}

int expr_product(const struct expr *const *factors, size_t n_factors, int64_t scale,
                 struct expr **out)
{
    size_t n = 1;
    for (size_t i = 0; i < n_factors; i++)
        n += factors[i]->n_ops + 1;
    struct op *ops = calloc(n, sizeof *ops);
    if (!ops)
        return -ENOMEM;
    struct code_builder b = { .ops = ops, .max_ops = (uint32_t)n };
    int rc = 0;
    /* Constants first, so that they fold into one. */
    rc = expr_emit(&b, (struct op){ .kind = OP_CONST, .imm = scale });
    for (int constants = 1; constants >= 0; constants--)
        for (size_t i = 0; i < n_factors && !rc; i++) {
            const struct expr *f = factors[i];
            if (!!expr_is_constant(f) != constants)
                continue;
            for (uint32_t k = 0; k < f->n_ops && !rc; k++)
                rc = expr_emit(&b, f->ops[k]);
            if (!rc)
                rc = expr_emit(&b, (struct op){ .kind = OP_MUL });
        }
    if (!rc)
        rc = expr_build(&b, out);
    free(ops);
    return rc;
}
