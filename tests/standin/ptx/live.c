/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is known of registers. Those that a thread must keep while it waits: read on some way from a
 * barrier or warp operation on, before they are written (classic backward data flow over basic
 * blocks). And those in which any NaN may stand for the canonical one.
 */
#include "ir.h"

#include <string.h>

static bool part_is(const struct instruction *i, unsigned n, const char *text)
{
    return n < i->n_parts && !strcmp(i->part[n], text);
}

unsigned written_operands(const struct instruction *i)
{
    static const char *const none[] = {
        "st",      "red",      "bra",       "brx",           "bar",
        "barrier", "ret",      "exit",      "trap",          "membar",
        "fence",   "prefetch", "prefetchu", "nanosleep",     "griddepcontrol",
        "discard", "brkpt",    "pmevent",   "applypriority", "cp"
    };
    if (i->label)
        return 0;
    for (size_t k = 0; k < sizeof none / sizeof none[0]; k++)
        if (part_is(i, 0, none[k]))
            return (part_is(i, 0, "bar") || part_is(i, 0, "barrier")) && i->n_parts > 1 &&
                           (part_is(i, 1, "red") || part_is(i, 2, "red"))
                       ? 1
                       : 0;
    return 1;
}

static void set(uint64_t *bits, const struct symbol *s, bool on)
{
    if (!s || s->kind != SYM_REG)
        return;
    if (on)
        bits[s->index / 64] |= 1ull << (s->index % 64);
    else
        bits[s->index / 64] &= ~(1ull << (s->index % 64));
}

static void each_register(const struct operand *o, uint64_t *bits, bool on)
{
    if (o->kind == O_REG || o->kind == O_MEM)
        set(bits, o->sym, on);
    set(bits, o->other, on);
    for (unsigned i = 0; i < o->n_parts; i++)
        each_register(&o->parts[i], bits, on);
}

/* live: after @i on entry, before it on return */
static void step_back(const struct instruction *i, uint64_t *live)
{
    unsigned written = written_operands(i);
    /* a guarded write may not happen: what was there stays alive */
    for (unsigned o = 0; o < written && o < i->n_operands && !i->guard; o++)
        if (i->operand[o].kind != O_MEM)
            each_register(&i->operand[o], live, false);
    if (!i->guard)
        each_register(&i->call_return, live, false);
    for (unsigned o = 0; o < i->n_operands; o++)
        if (o >= written || i->operand[o].kind == O_MEM)
            each_register(&i->operand[o], live, true);
    for (unsigned o = 0; o < i->n_call_arguments; o++)
        each_register(&i->call_arguments[o], live, true);
    set(live, i->guard, true);
}

static bool ends_block(const struct instruction *i)
{
    return part_is(i, 0, "bra") || part_is(i, 0, "brx") || part_is(i, 0, "ret") ||
           part_is(i, 0, "exit") || part_is(i, 0, "trap");
}

struct block {
    size_t first, end; /* instructions */
    uint64_t *in;
};

struct flow {
    struct module_ir *m;
    struct function_ir *f;
    struct block *blocks;
    size_t n_blocks;
    size_t *block_of_label; /* by label index */
    size_t words;
};

static void merge(uint64_t *to, const uint64_t *from, size_t words)
{
    for (size_t w = 0; w < words; w++)
        to[w] |= from[w];
}

static void merge_target(const struct flow *flow, const struct symbol *s, uint64_t *live)
{
    if (s && s->kind == SYM_LABEL)
        merge(live, flow->blocks[flow->block_of_label[s->index]].in, flow->words);
    for (unsigned t = 0; s && s->kind == SYM_TARGETS && t < s->n_targets; t++)
        merge_target(flow, s->targets[t], live);
}

static void live_out(const struct flow *flow, const struct block *b, uint64_t *live)
{
    memset(live, 0, flow->words * sizeof *live);
    const struct instruction *last = b->end > b->first ? flow->f->body[b->end - 1] : NULL;
    bool falls = true;
    if (last && !last->label && ends_block(last)) {
        for (unsigned o = 0; o < last->n_operands; o++)
            merge_target(flow, last->operand[o].sym, live);
        falls = last->guard != NULL;
    }
    size_t next = (size_t)(b - flow->blocks) + 1;
    if (falls && next < flow->n_blocks)
        merge(live, flow->blocks[next].in, flow->words);
}

static void find_blocks(struct flow *flow)
{
    struct function_ir *f = flow->f;
    flow->blocks = ir_alloc(flow->m, (f->n_body + 2) * sizeof *flow->blocks);
    flow->block_of_label = ir_alloc(flow->m, (f->n_labels + 1) * sizeof *flow->block_of_label);
    size_t first = 0;
    for (size_t i = 0; i <= f->n_body; i++) {
        bool last = i == f->n_body;
        const struct instruction *ins = last ? NULL : f->body[i];
        if (last || ins->label) {
            flow->blocks[flow->n_blocks++] = (struct block){ first, i, NULL };
            first = i;
            if (!last)
                flow->block_of_label[ins->label->index] = flow->n_blocks;
        } else if (ends_block(ins)) {
            flow->blocks[flow->n_blocks++] = (struct block){ first, i + 1, NULL };
            first = i + 1;
        }
    }
}

/*
 * Code from before __syncwarp() relies on a warp that runs in lockstep: lanes write to volatile shared
 * memory what others then read. So at such an access the warp's lanes wait for each other.
 */
bool instruction_in_step(const struct instruction *i)
{
    bool is_volatile = false, is_shared = false;
    if (!part_is(i, 0, "ld") && !part_is(i, 0, "st"))
        return false;
    for (unsigned k = 1; k < i->n_parts; k++) {
        is_volatile |= !strcmp(i->part[k], "volatile");
        is_shared |= !strncmp(i->part[k], "shared", 6);
    }
    return is_volatile && is_shared;
}

bool instruction_waits(const struct instruction *i)
{
    static const char *const words[] = { "bar",   "barrier",    "shfl",      "vote", "match",
                                         "redux", "activemask", "nanosleep", "mma",  "ldmatrix" };
    for (size_t k = 0; k < sizeof words / sizeof words[0]; k++)
        if (part_is(i, 0, words[k]))
            return true;
    return instruction_in_step(i);
}

void ptx_liveness(struct module_ir *m, struct function_ir *f)
{
    struct flow flow = { .m = m, .f = f, .words = f->n_regs / 64 + 1 };
    find_blocks(&flow);
    if (flow.n_blocks * flow.words > 1u << 26)
        ir_fail(m, PTX_E_UNSUPPORTED, "kernel %s is too large", f->name);
    for (size_t b = 0; b < flow.n_blocks; b++)
        flow.blocks[b].in = ir_alloc(m, flow.words * sizeof(uint64_t));
    uint64_t *live = ir_alloc(m, flow.words * sizeof *live);
    for (bool changed = true; changed;) {
        changed = false;
        for (size_t b = flow.n_blocks; b-- > 0;) {
            live_out(&flow, &flow.blocks[b], live);
            for (size_t i = flow.blocks[b].end; i-- > flow.blocks[b].first;)
                step_back(f->body[i], live);
            if (memcmp(live, flow.blocks[b].in, flow.words * sizeof *live)) {
                memcpy(flow.blocks[b].in, live, flow.words * sizeof *live);
                changed = true;
            }
        }
    }
    for (size_t b = 0; b < flow.n_blocks; b++) {
        live_out(&flow, &flow.blocks[b], live);
        for (size_t i = flow.blocks[b].end; i-- > flow.blocks[b].first;) {
            struct instruction *ins = f->body[i];
            /* what it reads is needed when the thread goes on: warp operations finish then */
            uint64_t *keep = instruction_waits(ins) ? ir_alloc(m, flow.words * sizeof *keep) : NULL;
            if (keep)
                memcpy(keep, live, flow.words * sizeof *keep);
            step_back(ins, live);
            if (keep) {
                merge(keep, live, flow.words);
                ins->live = keep;
            }
        }
    }
}

/* ------------------------------------------------------------------------- NaNs */

static bool is_arithmetic(const struct instruction *i)
{
    static const char *const words[] = { "add", "sub",  "mul",   "fma", "mad", "div",
                                         "rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin",
                                         "cos", "tanh", "cvt",   "min", "max" };
    for (size_t k = 0; k < sizeof words / sizeof words[0]; k++)
        if (part_is(i, 0, words[k]))
            return true;
    return false;
}

/* A plain copy keeps a register lazy if its source is, or is a number. */
static bool copies_lazily(const struct instruction *i, const struct symbol *to)
{
    const struct operand *from = &i->operand[1];
    if (!part_is(i, 0, "mov") || i->operand[0].kind != O_REG || i->n_operands != 2)
        return false;
    if (from->kind == O_REG)
        return from->sym->lazy_nan && from->sym->type == to->type && !from->negated;
    return from->kind == O_F32 && to->type == T_F32 &&
           ((uint64_t)from->value & 0x7fffffff) <= 0x7f800000;
}

static bool spoil(const struct instruction *i, struct symbol *s)
{
    if (!s || s->kind != SYM_REG || !s->lazy_nan || is_arithmetic(i) || copies_lazily(i, s))
        return false;
    s->lazy_nan = false;
    return true;
}

static bool spoil_operand(const struct instruction *i, const struct operand *o)
{
    bool changed = o->kind == O_REG && spoil(i, o->sym);
    for (unsigned k = 0; k < o->n_parts; k++)
        changed |= spoil_operand(i, &o->parts[k]);
    return changed;
}

/*
 * Arithmetic gives the canonical NaN; the CPU's own differs. To correct each result lengthens every
 * chain of additions, so a float register that nothing but arithmetic writes is corrected only where
 * its bits are seen: stored, moved, selected.
 */
void ptx_lazy_nans(struct function_ir *f)
{
    for (unsigned r = 0; r < f->n_regs; r++)
        f->regs[r]->lazy_nan = f->regs[r]->type == T_F32 || f->regs[r]->type == T_F64;
    int rounds = 0;
    for (bool changed = true; changed;) {
        changed = false;
        if (++rounds > 100) { /* no real code has such chains of copies */
            for (unsigned r = 0; r < f->n_regs; r++)
                f->regs[r]->lazy_nan = false;
            return;
        }
        for (size_t i = 0; i < f->n_body; i++)
            if (!f->body[i]->label)
                for (unsigned o = 0; o < 2; o++)
                    changed |= spoil_operand(f->body[i], o ? &f->body[i]->call_return
                                                           : &f->body[i]->operand[0]);
    }
}
