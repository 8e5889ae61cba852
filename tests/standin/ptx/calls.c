/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What follows from who calls whom: recursion is refused, local and shared memory are summed, and a
 * function in which threads wait for each other is put in the place of each of its calls, because
 * only a kernel's own C function can leave off in the middle and go on later.
 */
#include "ir.h"

#include <string.h>

#define MAX_DEPTH  64
#define MAX_BODY   500000 /* instructions; inlining multiplies */
#define MAX_LOCAL  (512u << 10)
#define MAX_SHARED (227u << 10)

static size_t align_up(size_t n, size_t align)
{
    return (n + align - 1) & ~(align - 1);
}

/* ------------------------------------------------------------------------- inlining */

/* One call being replaced: the callee's names in the caller. */
struct graft {
    struct module_ir *m;
    struct function_ir *to, *from;
    const struct instruction *call;
    struct symbol **regs, **labels; /* of the caller, by the callee's index */
    struct symbol *end;
    size_t local_base, param_base; /* where the callee's variables lie among the caller's */
    struct instruction **body;
    size_t n_body, cap_body;
};

static struct symbol *new_label(struct module_ir *m, struct function_ir *f)
{
    struct symbol *s = ir_alloc(m, sizeof *s);
    s->name = "";
    s->kind = SYM_LABEL;
    s->global = s->argument = -1;
    s->index = f->n_labels++;
    s->offset = 1;
    return s;
}

static struct symbol *graft_register(struct graft *g, const struct symbol *s)
{
    struct symbol **mine = &g->regs[s->index];
    if (!*mine) {
        struct symbol *copy = ir_alloc(g->m, sizeof *copy);
        size_t n = g->to->n_regs, cap = g->to->cap_regs;
        *copy = *s;
        copy->next = NULL;
        copy->index = g->to->n_regs;
        IR_PUSH(g->m, g->to->regs, n, cap, copy);
        g->to->n_regs = (unsigned)n;
        g->to->cap_regs = (unsigned)cap;
        *mine = copy;
    }
    return *mine;
}

static struct symbol *graft_symbol(struct graft *g, struct symbol *s);

static struct symbol *graft_variable(struct graft *g, struct symbol *s)
{
    struct symbol *copy;
    if (s->space == SPACE_PARAM && s->argument >= 0)
        return g->call->call_arguments[s->argument].sym;
    if (s->space == SPACE_PARAM && s->argument == -2)
        return g->call->call_return.sym;
    if (s->space != SPACE_PARAM && s->space != SPACE_LOCAL)
        return s;
    copy = ir_alloc(g->m, sizeof *copy);
    *copy = *s;
    copy->offset += s->space == SPACE_LOCAL ? g->local_base : g->param_base;
    return copy;
}

static struct symbol *graft_targets(struct graft *g, const struct symbol *s)
{
    struct symbol *copy = ir_alloc(g->m, sizeof *copy);
    *copy = *s;
    copy->targets = ir_alloc(g->m, (s->n_targets + 1) * sizeof *copy->targets);
    for (unsigned t = 0; t < s->n_targets; t++)
        copy->targets[t] = graft_symbol(g, s->targets[t]);
    return copy;
}

static struct symbol *graft_symbol(struct graft *g, struct symbol *s)
{
    if (!s)
        return NULL;
    switch (s->kind) {
    case SYM_REG: return graft_register(g, s);
    case SYM_VAR: return graft_variable(g, s);
    case SYM_TARGETS: return graft_targets(g, s);
    case SYM_LABEL:
        if (!g->labels[s->index])
            g->labels[s->index] = new_label(g->m, g->to);
        return g->labels[s->index];
    default: return s;
    }
}

static void graft_operand(struct graft *g, struct operand *o)
{
    o->sym = graft_symbol(g, o->sym);
    o->other = graft_symbol(g, o->other);
    if (o->n_parts) {
        struct operand *parts = ir_alloc(g->m, o->n_parts * sizeof *parts);
        memcpy(parts, o->parts, o->n_parts * sizeof *parts);
        o->parts = parts;
        for (unsigned k = 0; k < o->n_parts; k++)
            graft_operand(g, &o->parts[k]);
    }
}

static void graft_arguments(struct graft *g, struct instruction *i)
{
    struct operand *copy = ir_alloc(g->m, (i->n_call_arguments + 1) * sizeof *copy);
    for (unsigned k = 0; k < i->n_call_arguments; k++) {
        copy[k] = i->call_arguments[k];
        graft_operand(g, &copy[k]);
    }
    i->call_arguments = copy;
}

static void push(struct graft *g, struct instruction *i)
{
    if (g->n_body >= MAX_BODY)
        ir_fail(g->m, PTX_E_UNSUPPORTED,
                "function %s, line %d: calls multiply beyond %d instructions", g->to->name,
                g->call->line, MAX_BODY);
    IR_PUSH(g->m, g->body, g->n_body, g->cap_body, i);
}

static void push_branch(struct graft *g, int line, struct symbol *guard, bool negated,
                        struct symbol *to)
{
    struct instruction *i = ir_alloc(g->m, sizeof *i);
    i->line = line;
    i->opcode = i->part[0] = "bra";
    i->n_parts = 1;
    i->guard = guard;
    i->guard_negated = negated;
    i->operand[0].kind = O_SYM;
    i->operand[0].sym = to;
    i->n_operands = 1;
    push(g, i);
}

static void push_copy(struct graft *g, const struct instruction *from)
{
    struct instruction *i = ir_alloc(g->m, sizeof *i);
    *i = *from;
    i->guard = graft_symbol(g, i->guard);
    i->label = graft_symbol(g, i->label);
    for (unsigned o = 0; o < i->n_operands; o++)
        graft_operand(g, &i->operand[o]);
    graft_operand(g, &i->call_return);
    graft_arguments(g, i);
    if (!i->label && !strcmp(i->part[0], "ret"))
        push_branch(g, i->line, i->guard, i->guard_negated, g->end);
    else
        push(g, i);
}

static void push_label(struct graft *g, struct symbol *label)
{
    struct instruction *i = ir_alloc(g->m, sizeof *i);
    i->line = g->call->line;
    i->label = label;
    push(g, i);
}

static void graft_call(struct graft *g, const struct instruction *call)
{
    g->call = call;
    g->from = call->callee->function;
    g->regs = ir_alloc(g->m, (g->from->n_regs + 1) * sizeof *g->regs);
    g->labels = ir_alloc(g->m, (g->from->n_labels + 1) * sizeof *g->labels);
    g->end = new_label(g->m, g->to);
    g->local_base = align_up(g->to->local_bytes, 16);
    g->param_base = align_up(g->to->frame_params, 16);
    if (call->guard)
        push_branch(g, call->line, call->guard, !call->guard_negated, g->end);
    for (size_t i = 0; i < g->from->n_body; i++)
        push_copy(g, g->from->body[i]);
    push_label(g, g->end);
    g->to->local_bytes = g->local_base + g->from->local_bytes;
    g->to->frame_params = g->param_base + g->from->frame_params;
    if (g->to->local_bytes > MAX_LOCAL || g->to->frame_params > 64u << 10)
        ir_fail(g->m, PTX_E_UNSUPPORTED, "function %s, line %d: calls take too much memory",
                g->to->name, call->line);
}

/* A .param variable of the caller's own, with room for what the callee's takes */
static bool passes(const struct operand *o, const struct symbol *formal)
{
    return o->kind == O_SYM && o->sym->kind == SYM_VAR && o->sym->space == SPACE_PARAM &&
           o->sym->argument == -1 && !o->sym->kernel_param && o->sym->size >= formal->size;
}

bool call_passes(const struct instruction *i)
{
    const struct function_ir *callee = i->callee->function;
    if (i->n_call_arguments != callee->n_params)
        return false;
    for (unsigned k = 0; k < i->n_call_arguments; k++)
        if (!passes(&i->call_arguments[k], callee->params[k]))
            return false;
    return callee->result ? passes(&i->call_return, callee->result) : i->call_return.kind == O_SINK;
}

bool call_fits(const struct instruction *i)
{
    return i->callee->function->has_body && !i->callee->function->is_kernel && call_passes(i);
}

static void inline_waiting_calls(struct module_ir *m, struct function_ir *f)
{
    struct graft g = { .m = m, .to = f, .call = f->body[0] };
    for (size_t i = 0; i < f->n_body; i++) {
        struct instruction *ins = f->body[i];
        if (ins->callee && ins->callee->function->waits && call_fits(ins))
            graft_call(&g, ins);
        else
            push(&g, ins);
    }
    f->body = g.body;
    f->n_body = g.n_body;
    f->cap_body = g.cap_body;
}

/* ------------------------------------------------------------------------- sums */

static bool names_shared_of_module(const struct instruction *i)
{
    for (unsigned o = 0; o < i->n_operands; o++) {
        const struct symbol *s = i->operand[o].sym;
        if (s && s->kind == SYM_VAR && s->space == SPACE_SHARED && !s->external && !s->of_kernel)
            return true;
    }
    return false;
}

static void settle(struct module_ir *m, struct function_ir *f, int depth)
{
    size_t deepest = 0;
    bool calls_wait = false;
    if (f->settled)
        return;
    if (f->visiting)
        ir_fail(m, PTX_E_UNSUPPORTED, "function %s, line %d: recursion is not supported", f->name,
                f->line);
    if (depth > MAX_DEPTH)
        ir_fail(m, PTX_E_UNSUPPORTED, "function %s, line %d: calls nest too deep", f->name,
                f->line);
    f->visiting = true;
    for (size_t i = 0; i < f->n_body; i++) {
        struct function_ir *callee = f->body[i]->callee ? f->body[i]->callee->function : NULL;
        f->waits |= instruction_waits(f->body[i]);
        f->shares_module |= names_shared_of_module(f->body[i]);
        if (!callee)
            continue;
        settle(m, callee, depth + 1);
        calls_wait |= callee->waits;
        f->shares_module |= callee->shares_module;
        if (!callee->waits && callee->total_local > deepest)
            deepest = callee->total_local;
    }
    if (calls_wait)
        inline_waiting_calls(m, f);
    f->waits |= calls_wait;
    f->total_local = align_up(f->local_bytes, 16) + deepest;
    if (f->total_local > MAX_LOCAL)
        ir_fail(m, PTX_E_UNSUPPORTED, "function %s, line %d: more local memory than a thread has",
                f->name, f->line);
    f->visiting = false;
    f->settled = true;
}

void ptx_calls(struct module_ir *m)
{
    for (struct function_ir *f = m->functions; f; f = f->next) {
        settle(m, f, 0);
        if (!f->is_kernel)
            continue;
        f->shared_base = f->shares_module ? align_up(m->shared_bytes, 128) : 0;
        f->static_shared = f->shared_base + f->shared_bytes;
        if (f->static_shared > MAX_SHARED)
            ir_fail(m, PTX_E_UNSUPPORTED,
                    "kernel %s, line %d: %zu bytes of shared memory, %u are the most", f->name,
                    f->line, f->static_shared, MAX_SHARED);
    }
}
