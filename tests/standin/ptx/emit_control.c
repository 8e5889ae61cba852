/* SPDX-License-Identifier: Apache-2.0 */
/* Branches, calls, and threads that wait for each other. */
#include "emit.h"

#include <string.h>

static void save_restore(struct emitter *e, bool save)
{
    for (size_t w = 0; e->i->live && w <= e->f->n_regs / 64; w++)
        for (uint64_t left = e->i->live[w]; left; left &= left - 1) {
            unsigned r = (unsigned)(w * 64) + (unsigned)__builtin_ctzll(left);
            emit_put(e, save ? " F->s%u = r%u;" : " r%u = F->s%u;", r, r);
        }
}

/* The thread stops here and resumes after it; what it brings and for whom it waits is in F->h. */
static void wait_here(struct emitter *e, const char *kind)
{
    if (!e->f->is_kernel)
        ir_fail(e->m, PTX_E_UNSUPPORTED,
                "function %s, line %d: %s in a function that is called is not supported",
                e->f->name, e->i->line, e->i->opcode);
    unsigned k = ++e->n_waits;
    emit_put(e, "{");
    save_restore(e, true);
    emit_put(e, " F->h.pc = %u; F->h.wait = %s; goto next_thread; W%u:;", k, kind, k);
    save_restore(e, false);
    emit_put(e, " }\n");
}

/* Shows @value to the lanes named by operand @mask; without one, to those at the same instruction. */
static void meet_warp(struct emitter *e, const char *value, unsigned mask)
{
    emit_put(e, "F->h.brings = (u64)(%s); ", value);
    if (mask < e->i->n_operands) {
        emit_put(e, "F->h.mask = %s; ", op_arg(e, mask, T_U32));
        wait_here(e, "WAIT_WARP");
    } else {
        wait_here(e, "WAIT_ACTIVE");
    }
}

void emit_meet_warp(struct emitter *e)
{
    emit_put(e, "F->h.mask = ~0u; ");
    wait_here(e, "WAIT_WARP");
}

void emit_shfl(struct emitter *e)
{
    const struct operand *dst = &e->i->operand[0];
    int mode = op_has(e, "up") ? 0 : op_has(e, "down") ? 1 : op_has(e, "bfly") ? 2 : 3;
    op_only(e, "up down bfly idx");
    meet_warp(e, op_arg(e, 1, T_B32), 4);
    emit_put(e, "{ u32 ok, v = warp_shfl(&B, T->linear, %d, %s, %s, %s, &ok);", mode,
             op_arg(e, 1, T_B32), op_arg(e, 2, T_U32), op_arg(e, 3, T_U32));
    operand_write(e, dst, T_B32, "v");
    if (dst->other)
        emit_put(e, " r%u = ok != 0;", dst->other->index);
    emit_put(e, " (void)ok; }\n");
}

void emit_vote(struct emitter *e)
{
    int mode = op_has(e, "any") ? 0 : op_has(e, "all") ? 1 : op_has(e, "uni") ? 2 : 3;
    op_only(e, "all any uni ballot");
    meet_warp(e, op_arg(e, 1, T_PRED), 2);
    op_result(e, mode == 3 ? T_B32 : T_PRED, emit_say(e, "warp_vote(&B, T->linear, %d)", mode));
}

void emit_match(struct emitter *e)
{
    const struct operand *dst = &e->i->operand[0];
    enum type t = op_the_type(e);
    op_only(e, "any all");
    meet_warp(e, op_arg(e, 1, t), 2);
    emit_put(e, "{ u32 same, v = warp_match(&B, T->linear, %s, %d, &same);", op_arg(e, 1, t),
             op_has(e, "all"));
    operand_write(e, dst, T_B32, "v");
    if (dst->other)
        emit_put(e, " r%u = same != 0;", dst->other->index);
    emit_put(e, " (void)same; }\n");
}

void emit_redux(struct emitter *e)
{
    bool s = type_is_signed(op_the_type(e));
    int op = op_has(e, "add")   ? 0
             : op_has(e, "min") ? (s ? 3 : 1)
             : op_has(e, "max") ? (s ? 4 : 2)
             : op_has(e, "and") ? 5
             : op_has(e, "or")  ? 6
                                : 7;
    op_only(e, "add min max and or xor");
    if (type_bytes(op_the_type(e)) != 4 || op_the_type(e) == T_F32)
        emit_unsupported(e);
    meet_warp(e, op_arg(e, 1, T_B32), 2);
    op_result(e, T_B32, emit_say(e, "warp_redux(&B, T->linear, %d)", op));
}

void emit_step(struct emitter *e)
{
    emit_put(e, "F->h.brings = 0; ");
    wait_here(e, "WAIT_ACTIVE");
}

void emit_sleep(struct emitter *e)
{
    op_need(e, 1);
    op_only(e, "");
    emit_put(e, "F->h.brings = sleep_end(%s); ", op_arg(e, 0, T_U32));
    wait_here(e, "WAIT_SLEEP");
}

void emit_activemask(struct emitter *e)
{
    op_need(e, 1);
    op_only(e, "");
    emit_put(e, "F->h.brings = 0; ");
    wait_here(e, "WAIT_ACTIVE");
    op_result(e, T_B32, "F->h.group");
}

/* Barrier @id, which takes as many threads as operand @expected says; 0: all. */
static void name_barrier(struct emitter *e, const char *id, const char *expected)
{
    emit_put(e, "F->h.barrier = %s; F->h.expected = (u16)(%s); ", id, expected);
}

/* bar.red.OP d, a{, b}, p */
static void emit_barrier_red(struct emitter *e)
{
    unsigned last = e->i->n_operands - 1;
    op_need(e, 3);
    name_barrier(e, emit_say(e, "%s & 15", op_arg(e, 1, T_U32)),
                 last > 2 ? op_arg(e, 2, T_U32) : "0");
    emit_put(e, "F->h.brings = %s != 0; ", op_arg(e, last, T_PRED));
    wait_here(e, "WAIT_BARRIER");
    if (op_has(e, "popc"))
        op_result(e, T_U32, "(u32)F->h.brought");
    else
        op_result(e, T_PRED,
                  op_has(e, "and") ? "(u32)F->h.brought == F->h.brought >> 32"
                                   : "(u32)F->h.brought != 0");
}

void emit_barrier(struct emitter *e)
{
    op_only(e, "red popc and or arrive warp wait");
    if (op_has(e, "warp")) {
        meet_warp(e, "0", 0);
    } else if (op_is(e, "barrier") && op_has(e, "cluster")) {
        /* a cluster of one block: to arrive is nothing, to wait is to wait for the block */
        name_barrier(e, "CLUSTER_BARRIER", "0");
        if (op_has(e, "wait"))
            wait_here(e, "WAIT_BARRIER");
    } else if (op_has(e, "red")) {
        emit_barrier_red(e);
    } else if (op_has(e, "arrive")) {
        op_need(e, 2);
        emit_put(e, "B.arrived[%s & 15]++;\n", op_arg(e, 0, T_U32));
    } else {
        op_need(e, 1);
        name_barrier(e, emit_say(e, "%s & 15", op_arg(e, 0, T_U32)),
                     e->i->n_operands > 1 ? op_arg(e, 1, T_U32) : "0");
        emit_put(e, "F->h.brings = 0; ");
        wait_here(e, "WAIT_BARRIER");
    }
}

/* call (back), vprintf, (format, arguments) */
static void emit_print(struct emitter *e)
{
    const struct instruction *i = e->i;
    if (!call_passes(i))
        emit_unsupported(e);
    emit_put(e,
             "{ u64 format, args; memcpy(&format, C + %zu, 8); memcpy(&args, C + %zu, 8); s32 n = "
             "E->print(E, T, format, args); memcpy(C + %zu, &n, 4); }\n",
             i->call_arguments[0].sym->offset, i->call_arguments[1].sym->offset,
             i->call_return.sym->offset);
}

void emit_call(struct emitter *e)
{
    const struct instruction *i = e->i;
    const struct function_ir *callee = i->callee->function;
    if (!callee->has_body && !strcmp(callee->name, "__assertfail")) {
        emit_put(e, "E->trap();\n");
        return;
    }
    if (!callee->has_body && !strcmp(callee->name, "vprintf")) {
        emit_print(e);
        return;
    }
    if (!callee->has_body || callee->is_kernel || i->n_call_arguments != callee->n_params)
        ir_fail(e->m, PTX_E_UNSUPPORTED,
                "kernel %s, line %d: call of %s, which has no body here, is not supported",
                e->f->name, i->line, callee->name);
    if (!call_fits(i))
        emit_unsupported(e);
    emit_put(e, "f_%s(E, T, local_at + %zu, %s", callee->c_name,
             (e->f->local_bytes + 15) & ~(size_t)15,
             i->call_return.kind == O_SINK ? "NULL"
                                           : emit_say(e, "C + %zu", i->call_return.sym->offset));
    for (unsigned k = 0; k < i->n_call_arguments; k++)
        emit_put(e, ", C + %zu", i->call_arguments[k].sym->offset);
    emit_put(e, ");\n");
}

void emit_branch(struct emitter *e)
{
    op_need(e, 1);
    op_only(e, "idx");
    if (op_is(e, "bra")) {
        if (e->i->operand[0].kind != O_SYM || e->i->operand[0].sym->kind != SYM_LABEL)
            emit_unsupported(e);
        emit_put(e, "goto L%u;\n", e->i->operand[0].sym->index);
        return;
    }
    op_need(e, 2);
    const struct symbol *targets = e->i->operand[1].sym;
    if (e->i->operand[1].kind != O_SYM || targets->kind != SYM_TARGETS)
        emit_unsupported(e);
    emit_put(e, "switch (%s) {", op_arg(e, 0, T_U32));
    for (unsigned k = 0; k < targets->n_targets; k++)
        emit_put(e, " case %u: goto L%u;", k, targets->targets[k]->index);
    emit_put(e, " default: E->trap(); }\n");
}

void emit_fence(struct emitter *e)
{
    /* membar and fence: gpu or cta scope are no weaker here than sys */
    emit_put(e, "__atomic_thread_fence(%s);\n",
             op_has(e, "acq_rel")   ? "__ATOMIC_ACQ_REL"
             : op_has(e, "acquire") ? "__ATOMIC_ACQUIRE"
             : op_has(e, "release") ? "__ATOMIC_RELEASE"
                                    : "__ATOMIC_SEQ_CST");
}

void emit_depend(struct emitter *e)
{
    op_only(e, "wait launch_dependents");
    emit_put(e, op_has(e, "wait") ? "GRID(depend);\n" : "GRID(trigger);\n");
}

void emit_nothing(struct emitter *e)
{
    emit_put(e, ";\n");
}

void emit_exit(struct emitter *e)
{
    if (op_is(e, "trap"))
        emit_put(e, "E->trap();\n");
    else if (e->f->is_kernel)
        emit_put(e, "goto done;\n");
    else if (op_is(e, "ret"))
        emit_put(e, "return;\n");
    else
        emit_unsupported(e);
}
