/* SPDX-License-Identifier: Apache-2.0 */
/*
 * IR to C. A register is a C local; a kernel is a function that runs the threads of one block, one
 * after another. A thread that must wait saves its live registers and the others go on; it resumes
 * at a label when rt.h's schedule() says so. An instruction that is not known here fails the module by name.
 */
#include "emit.h"

#include <string.h>

static const struct {
    const char *name;
    void (*emit)(struct emitter *e);
} instructions[] = {
    { "ld", emit_ld },
    { "ldu", emit_ld },
    { "st", emit_st },
    { "atom", emit_atom },
    { "red", emit_atom },
    { "mov", emit_mov },
    { "cvta", emit_cvta },
    { "isspacep", emit_isspacep },
    { "createpolicy", emit_createpolicy },
    { "cp", emit_cp },
    { "tex", emit_tex },
    { "mma", emit_mma },
    { "ldmatrix", emit_ldmatrix },
    { "add", emit_add_sub },
    { "sub", emit_add_sub },
    { "addc", emit_add_sub },
    { "subc", emit_add_sub },
    { "mul", emit_mul },
    { "mul24", emit_mul24 },
    { "mad24", emit_mul24 },
    { "mad", emit_mad },
    { "madc", emit_mad },
    { "fma", emit_fma },
    { "div", emit_div_rem },
    { "rem", emit_div_rem },
    { "min", emit_min_max },
    { "max", emit_min_max },
    { "neg", emit_neg_abs },
    { "abs", emit_neg_abs },
    { "rcp", emit_unary_float },
    { "sqrt", emit_unary_float },
    { "rsqrt", emit_unary_float },
    { "ex2", emit_unary_float },
    { "lg2", emit_unary_float },
    { "sin", emit_unary_float },
    { "cos", emit_unary_float },
    { "tanh", emit_unary_float },
    { "testp", emit_testp_copysign },
    { "copysign", emit_testp_copysign },
    { "and", emit_logic },
    { "or", emit_logic },
    { "xor", emit_logic },
    { "not", emit_logic },
    { "cnot", emit_logic },
    { "shl", emit_shift },
    { "shr", emit_shift },
    { "popc", emit_bits },
    { "clz", emit_bits },
    { "brev", emit_bits },
    { "bfind", emit_bits },
    { "bfe", emit_bits },
    { "bfi", emit_bits },
    { "bmsk", emit_bits },
    { "prmt", emit_bits },
    { "lop3", emit_bits },
    { "shf", emit_bits },
    { "dp4a", emit_bits },
    { "dp2a", emit_bits },
    { "sad", emit_bits },
    { "setp", emit_setp },
    { "set", emit_set },
    { "selp", emit_select },
    { "slct", emit_select },
    { "cvt", emit_cvt },
    { "bra", emit_branch },
    { "brx", emit_branch },
    { "call", emit_call_or_runtime },
    { "ret", emit_exit },
    { "exit", emit_exit },
    { "trap", emit_exit },
    { "bar", emit_barrier },
    { "barrier", emit_barrier },
    { "shfl", emit_shfl },
    { "vote", emit_vote },
    { "match", emit_match },
    { "redux", emit_redux },
    { "activemask", emit_activemask },
    { "membar", emit_fence },
    { "fence", emit_fence },
    { "prefetch", emit_prefetch },
    { "prefetchu", emit_prefetch },
    { "nanosleep", emit_sleep },
    { "griddepcontrol", emit_depend },
    { "discard", emit_nothing },
    { "pmevent", emit_nothing },
    { "brkpt", emit_nothing },
    { "applypriority", emit_nothing },
};

static void emit_instruction(struct emitter *e)
{
    const struct instruction *i = e->i;
    e->n_scratch = 0;
    if (i->label) {
        emit_put(e, "L%u:;\n", i->label->index);
        return;
    }
    for (size_t k = 0; k < sizeof instructions / sizeof instructions[0]; k++) {
        if (strcmp(instructions[k].name, i->part[0]))
            continue;
        if (i->guard)
            emit_put(e, "if (%sr%u) {\n", i->guard_negated ? "!" : "", i->guard->index);
        instructions[k].emit(e);
        emit_put(e, i->guard ? "}\n" : "\n");
        return;
    }
    emit_unsupported(e);
}

/* ------------------------------------------------------------------------- functions */

static void declare_registers(struct emitter *e)
{
    for (unsigned r = 0; r < e->f->n_regs; r++)
        emit_put(e, "%s r%u = 0; (void)r%u;\n", type_storage(e->f->regs[r]->type), r, r);
    emit_put(e, "u32 CF = 0; (void)CF;\n");
    if (e->f->frame_params && !e->f->waits)
        emit_put(e, "_Alignas(16) u8 C[%zu]; (void)C;\n", e->f->frame_params);
}

static void emit_window(struct emitter *e)
{
    emit_put(e, "const u64 DB = E->device_base, DN = E->device_size; const s64 DD = "
                "E->alias_delta; (void)DB; (void)DN; (void)DD;\n"
                "u8 *const SB = E->shared; const u64 SN = E->n_shared; (void)SB; (void)SN;\n");
}

static void emit_body(struct emitter *e)
{
    for (size_t i = 0; i < e->f->n_body; i++) {
        e->i = e->f->body[i];
        emit_instruction(e);
    }
}

static bool body_has(const struct function_ir *f, const char *op)
{
    for (size_t i = 0; i < f->n_body; i++)
        if (!f->body[i]->label && !strcmp(f->body[i]->part[0], op))
            return true;
    return false;
}

/* Registers that some wait keeps: the thread's frame. */
static void emit_frame(struct emitter *e)
{
    size_t words = e->f->n_regs / 64 + 1;
    uint64_t *kept = ir_alloc(e->m, words * sizeof *kept);
    for (size_t i = 0; i < e->f->n_body; i++)
        for (size_t w = 0; e->f->body[i]->live && w < words; w++)
            kept[w] |= e->f->body[i]->live[w];
    emit_put(e, "struct frame_%s { struct rt_frame h;", e->f->c_name);
    if (body_has(e->f, "mma") || body_has(e->f, "ldmatrix"))
        emit_put(e, " struct rt_wide wide;");
    if (e->has_async)
        emit_put(e, " struct rt_async async;");
    for (unsigned r = 0; r < e->f->n_regs; r++)
        if (kept[r / 64] >> (r % 64) & 1)
            emit_put(e, " %s s%u;", type_storage(e->f->regs[r]->type), r);
    if (e->f->frame_params) /* what a call passes is the thread's own, too */
        emit_put(e, " _Alignas(16) u8 c[%zu];", e->f->frame_params);
    emit_put(e, " };\n");
}

static void emit_kernel(struct emitter *e)
{
    const struct function_ir *f = e->f;
    bool waits = f->waits;
    if (waits) {
        ptx_liveness(e->m, e->f);
        emit_frame(e);
    } else
        emit_put(e, "struct frame_%s { u8 none; };\n", f->c_name);
    emit_put(e, "const u64 frame_bytes_%s = %s;\n", f->c_name,
             waits ? emit_say(e, "sizeof(struct frame_%s)", f->c_name) : "0");
    emit_put(e, "void k_%s(const struct rt_env *E)\n{\n", f->c_name);
    emit_window(e);
    emit_put(e, "const u8 *const P = E->params; (void)P; const u64 local_at = 0; (void)local_at;\n"
                "const u32 n_threads = E->block[0] * E->block[1] * E->block[2];\n"
                "struct thread_id id = {0}; struct thread_id *const T = &id;\n"
                "id.n_local = LOCAL_BYTES;\n");
    if (waits)
        emit_put(e,
                 "struct rt_block B = {.frames = E->frames, .stride = sizeof(struct frame_%s), .n "
                 "= n_threads};\nagain:\n",
                 f->c_name);
    emit_put(
        e,
        "for (id.linear = 0, id.x = 0, id.y = 0, id.z = 0; id.linear < n_threads; id.linear++) {\n"
        "id.local = E->local + id.linear * LOCAL_BYTES;\n");
    if (waits)
        emit_put(e, "struct frame_%s *const F = (void *)(E->frames + id.linear * sizeof(*F));\n",
                 f->c_name);
    if (waits && f->frame_params)
        emit_put(e, "u8 *const C = F->c; (void)C;\n");
    if (e->has_async)
        emit_put(e, waits ? "id.async = &F->async;\n"
                          : "struct rt_async async; async.n = async.first = async.group = 0; "
                            "id.async = &async;\n");
    declare_registers(e);
    if (waits)
        emit_put(e, "if (F->h.wait) goto next_thread;\nif (F->h.pc) goto resume;\n");
    emit_body(e);
    emit_put(e, "goto done; done:;\n");
    if (waits) {
        emit_put(e, "F->h.wait = WAIT_DONE; goto next_thread;\nresume: switch (F->h.pc) {\n");
        for (unsigned k = 1; k <= e->n_waits; k++)
            emit_put(e, "case %u: goto W%u;\n", k, k);
        emit_put(e, "default: break; }\nnext_thread:;\n");
    }
    emit_put(e, "if (++id.x == E->block[0]) { id.x = 0; if (++id.y == E->block[1]) { id.y = 0; "
                "id.z++; } }\n}\n");
    if (waits)
        emit_put(e, "switch (schedule(&B)) { case 1: goto again; case 2: E->trap(); }\n");
    emit_put(e, "}\n");
}

static void emit_prototype(struct emitter *e, const struct function_ir *f)
{
    emit_put(e,
             "static __attribute__((unused)) void f_%s(const struct rt_env *E, struct thread_id "
             "*T, u64 local_at, u8 *R",
             f->c_name);
    for (unsigned k = 0; k < f->n_params; k++)
        emit_put(e, ", u8 *A%u", k);
    emit_put(e, ")");
}

static void emit_function(struct emitter *e)
{
    emit_prototype(e, e->f);
    emit_put(e, "\n{\n(void)E; (void)T; (void)local_at; (void)R;\n");
    for (unsigned k = 0; k < e->f->n_params; k++)
        emit_put(e, "(void)A%u;\n", k);
    emit_window(e);
    declare_registers(e);
    emit_body(e);
    emit_put(e, "}\n");
}

void ptx_emit(struct module_ir *m, struct text *out, bool pausable)
{
    struct emitter e = {
        .m = m, .out = out, .pausable = pausable, .scratch = ir_alloc(m, EMIT_SCRATCH)
    };
    for (struct function_ir *f = m->functions; f; f = f->next) {
        e.has_async |= body_has(f, "cp");
        if (!f->is_kernel && !f->waits) {
            emit_prototype(&e, f);
            emit_put(&e, ";\n");
        }
    }
    for (struct function_ir *f = m->functions; f; f = f->next) {
        e.f = f;
        e.n_waits = 0;
        e.n_scratch = 0;
        ptx_lazy_nans(f);
        if (f->is_kernel) {
            emit_put(&e, "#undef LOCAL_BYTES\n#define LOCAL_BYTES %zuull\n", f->total_local);
            emit_kernel(&e);
        } else if (!f->waits) { /* else its code is inlined where it is called */
            emit_function(&e);
        }
    }
    emit_info(&e);
}
