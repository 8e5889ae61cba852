/* SPDX-License-Identifier: Apache-2.0 */
/* Matrices that a warp holds together (mma, ldmatrix), and asynchronous copies. */
#include "emit.h"

#include <stdlib.h>
#include <string.h>

static unsigned words_of(const struct operand *o)
{
    return o->kind == O_VEC ? o->n_parts : 1;
}

static const struct operand *word_of(const struct operand *o, unsigned k)
{
    return o->kind == O_VEC ? &o->parts[k] : o;
}

/* Operand @n as words @at.. of what the lane brings */
static void bring_words(struct emitter *e, unsigned n, unsigned want, unsigned at)
{
    const struct operand *o = &e->i->operand[n];
    if (words_of(o) != want)
        ir_fail(e->m, PTX_E_SYNTAX, "kernel %s, line %d: %s takes %u registers", e->f->name,
                e->i->line, e->i->opcode, want);
    for (unsigned k = 0; k < want; k++)
        emit_put(e, " w[%u] = %s;", at + k, operand_as(e, word_of(o, k), T_B32));
}

static void take_words(struct emitter *e, unsigned want)
{
    const struct operand *o = &e->i->operand[0];
    if (words_of(o) != want)
        ir_fail(e->m, PTX_E_SYNTAX, "kernel %s, line %d: %s takes %u registers", e->f->name,
                e->i->line, e->i->opcode, want);
    for (unsigned k = 0; k < want; k++)
        operand_write(e, word_of(o, k), T_B32, emit_say(e, "w[%u]", k));
}

/* The forms there are: opcode from the shape on, how many registers A takes (B half of them), and what sums are kept in. */
static const struct form {
    const char *text;
    const char *type;
    unsigned n_a;
    bool half;
} forms[] = {
    { "m16n8k16.row.col.f32.f16.f16.f32", "MMA_F16", 4, false },
    { "m16n8k16.row.col.f16.f16.f16.f16", "MMA_F16", 4, true },
    { "m16n8k16.row.col.f32.bf16.bf16.f32", "MMA_BF16", 4, false },
    { "m16n8k8.row.col.f32.f16.f16.f32", "MMA_F16", 2, false },
    { "m16n8k8.row.col.f16.f16.f16.f16", "MMA_F16", 2, true },
    { "m16n8k8.row.col.f32.bf16.bf16.f32", "MMA_BF16", 2, false },
    { "m16n8k8.row.col.f32.tf32.tf32.f32", "MMA_TF32", 4, false },
    { "m16n8k4.row.col.f32.tf32.tf32.f32", "MMA_TF32", 2, false },
};

void emit_mma(struct emitter *e)
{
    static const char prefix[] = "mma.sync.aligned.";
    const struct form *form = NULL;
    if (!strncmp(e->i->opcode, prefix, sizeof prefix - 1))
        for (size_t k = 0; k < sizeof forms / sizeof forms[0]; k++)
            if (!strcmp(e->i->opcode + sizeof prefix - 1, forms[k].text))
                form = &forms[k];
    if (!form)
        emit_unsupported(e);
    op_need(e, 4);
    unsigned n_sums = form->half ? 2 : 4;
    emit_put(e, "{ u32 *w = wide_words(&B, T->linear);");
    bring_words(e, 1, form->n_a, 0);
    bring_words(e, 2, form->n_a / 2, 4);
    bring_words(e, 3, n_sums, 6);
    emit_put(e, " }\n");
    emit_meet_warp(e);
    emit_put(e, "{ const u32 *w = warp_mma(E, &B, T->linear, %s, %u, %d);", form->type, form->n_a,
             form->half);
    take_words(e, n_sums);
    emit_put(e, " }\n");
}

void emit_ldmatrix(struct emitter *e)
{
    unsigned n = op_has(e, "x1") ? 1 : op_has(e, "x2") ? 2 : op_has(e, "x4") ? 4 : 0;
    op_only(e, "m8n8 x1 x2 x4 trans");
    op_need(e, 2);
    if (!n || !op_has(e, "m8n8") || op_the_type(e) != T_B16)
        emit_unsupported(e);
    emit_put(e, "F->h.brings = %s;\n", emit_shared_offset(e, &e->i->operand[1]));
    emit_meet_warp(e);
    emit_put(e, "{ const u32 *w = warp_ldmatrix(E, &B, T->linear, %u, %d);", n, op_has(e, "trans"));
    take_words(e, n);
    emit_put(e, " }\n");
}

/* ------------------------------------------------------------------------- copies */

/* How many bytes of the source count: all, what an operand says, or none where a predicate does. */
static const char *bytes_taken(struct emitter *e, unsigned size)
{
    unsigned n = e->i->n_operands - op_has(e, "L2::cache_hint");
    const struct operand *o = &e->i->operand[3];
    if (n < 4)
        return emit_say(e, "%uu", size);
    if (o->kind == O_REG && o->sym->type == T_PRED)
        return emit_say(e, "(%s ? 0 : %uu)", operand_as(e, o, T_PRED), size);
    return operand_as(e, o, T_U32);
}

/* cp.async.ca.shared.global [to], [from], size{, bytes that count | ignore}{, policy} */
static void emit_copy(struct emitter *e)
{
    op_need(e, 3);
    const struct operand *to = &e->i->operand[0], *from = &e->i->operand[1];
    int64_t size = e->i->operand[2].kind == O_INT ? e->i->operand[2].value : 0;
    bool fits = op_has(e, "cg") ? size == 16 : size == 4 || size == 8 || size == 16;
    if (!fits || op_has(e, "ca") == op_has(e, "cg") || !op_has(e, "global") ||
        !(op_has(e, "shared") || op_has(e, "shared::cta")))
        emit_unsupported(e);
    emit_put(e, "{ u32 take = %s; if (take > %u) E->trap();", bytes_taken(e, (unsigned)size),
             (unsigned)size);
    emit_put(e, " void *to = %s;", emit_pointer(e, to, SPACE_SHARED, (unsigned)size));
    /* of what does not count nothing is read, so its address may be any */
    emit_put(e, " const void *from = take ? %s : to;",
             emit_pointer(e, from, SPACE_GLOBAL, (unsigned)size));
    emit_put(e, " async_copy(T->async, to, from, %u, take); }\n", (unsigned)size);
}

void emit_cp(struct emitter *e)
{
    op_only(e, "async commit_group wait_group wait_all");
    if (e->i->n_parts < 3 || strcmp(e->i->part[1], "async"))
        emit_unsupported(e);
    if (op_has(e, "commit_group"))
        emit_put(e, "T->async->group++;\n");
    else if (op_has(e, "wait_all"))
        emit_put(e, "async_wait_all(T->async);\n");
    else if (op_has(e, "wait_group"))
        emit_put(e, "async_wait(T->async, %s);\n", op_arg(e, 0, T_U32));
    else
        emit_copy(e);
}
