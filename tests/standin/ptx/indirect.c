/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls of a function that a register names. Only functions whose addresses are taken in the module can be meant, and of
 * these only such as take what is passed: so a call becomes a chain of comparisons and ordinary calls, at whose end is a
 * trap. What follows from calls (memory, recursion, waiting) is then the same for all.
 */
#include "ir.h"

#include <string.h>

#define MAX_BODY 500000 /* instructions: each call multiplies by the functions that may be meant */

struct body {
    struct module_ir *m;
    struct function_ir *f;
    int line;
    struct instruction **list;
    size_t n, cap;
};

static struct instruction *add(struct body *b, const char *op, struct symbol *guard, bool negated)
{
    struct instruction *i = ir_alloc(b->m, sizeof *i);
    if (b->n >= MAX_BODY)
        ir_fail(b->m, PTX_E_UNSUPPORTED, "function %s, line %d: more calls than fit", b->f->name,
                b->line);
    i->line = b->line;
    i->opcode = i->part[0] = op;
    i->n_parts = 1;
    i->guard = guard;
    i->guard_negated = negated;
    IR_PUSH(b->m, b->list, b->n, b->cap, i);
    return i;
}

static struct symbol *new_symbol(struct body *b, enum symbol_kind kind)
{
    struct symbol *s = ir_alloc(b->m, sizeof *s);
    s->name = "";
    s->kind = kind;
    s->global = s->argument = -1;
    return s;
}

static struct symbol *new_label(struct body *b)
{
    struct symbol *s = new_symbol(b, SYM_LABEL);
    s->index = b->f->n_labels++;
    s->offset = 1;
    return s;
}

static struct symbol *new_predicate(struct body *b)
{
    struct symbol *s = new_symbol(b, SYM_REG);
    size_t n = b->f->n_regs, cap = b->f->cap_regs;
    s->type = T_PRED;
    s->index = b->f->n_regs;
    IR_PUSH(b->m, b->f->regs, n, cap, s);
    b->f->n_regs = (unsigned)n;
    b->f->cap_regs = (unsigned)cap;
    return s;
}

static void place(struct body *b, struct symbol *label)
{
    add(b, "", NULL, false)->label = label;
}

static void branch(struct body *b, struct symbol *guard, bool negated, struct symbol *to)
{
    struct instruction *i = add(b, "bra", guard, negated);
    i->operand[0] = (struct operand){ .kind = O_SYM, .sym = to };
    i->n_operands = 1;
}

/* p = target is @function's address */
static void compare(struct body *b, struct symbol *p, struct operand target,
                    struct symbol *function)
{
    struct instruction *i = add(b, "setp", NULL, false);
    i->part[1] = "eq";
    i->part[2] = "u64";
    i->n_parts = 3;
    i->operand[0] = (struct operand){ .kind = O_REG, .sym = p };
    i->operand[1] = target;
    i->operand[2] = (struct operand){ .kind = O_SYM, .sym = function };
    i->n_operands = 3;
}

static size_t size_of(const struct operand *o)
{
    return o->kind == O_SYM && o->sym->kind == SYM_VAR ? o->sym->size : 0;
}

/* Does @f take and give exactly what this call passes? */
static bool may_be_meant(const struct function_ir *f, struct instruction *call)
{
    if (f->is_kernel || !f->has_body || !f->symbol->address_taken ||
        f->n_params != call->n_call_arguments)
        return false;
    call->callee = f->symbol;
    bool fits = call_fits(call);
    call->callee = NULL;
    for (unsigned k = 0; k < f->n_params; k++)
        fits = fits && size_of(&call->call_arguments[k]) == f->params[k]->size;
    return fits && (!f->result || size_of(&call->call_return) == f->result->size);
}

static void lower(struct body *b, struct instruction *call)
{
    struct symbol *end = new_label(b), *p = new_predicate(b);
    b->line = call->line;
    if (call->guard)
        branch(b, call->guard, !call->guard_negated, end);
    for (struct function_ir *f = b->m->functions; f; f = f->next) {
        if (!may_be_meant(f, call))
            continue;
        struct symbol *next = new_label(b);
        compare(b, p, call->call_target, f->symbol);
        branch(b, p, true, next);
        struct instruction *direct = add(b, "call", NULL, false);
        *direct = *call;
        direct->is_indirect = false;
        direct->guard = NULL;
        direct->callee = f->symbol;
        branch(b, NULL, false, end);
        place(b, next);
    }
    add(b, "trap", NULL, false);
    place(b, end);
}

void ptx_indirect_calls(struct module_ir *m)
{
    for (struct function_ir *f = m->functions; f; f = f->next) {
        struct body b = { .m = m, .f = f };
        bool any = false;
        for (size_t i = 0; i < f->n_body; i++)
            any |= f->body[i]->is_indirect;
        for (size_t i = 0; any && i < f->n_body; i++)
            if (f->body[i]->is_indirect)
                lower(&b, f->body[i]);
            else
                IR_PUSH(m, b.list, b.n, b.cap, f->body[i]);
        if (!any)
            continue;
        f->body = b.list;
        f->n_body = b.n;
        f->cap_body = b.cap;
    }
}
