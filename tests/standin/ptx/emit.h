/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the emitter share. A handler writes the C of one instruction, e->i; what it has
 * no C for ends the translation with a message (emit_unsupported()). Expressions are strings that
 * live until the next instruction.
 */
#ifndef STANDIN_PTX_EMIT_H
#define STANDIN_PTX_EMIT_H

#include "ir.h"

#define EMIT_SCRATCH (64u << 10)

struct emitter {
    struct module_ir *m;
    struct function_ir *f;
    const struct instruction *i;
    struct text *out;
    bool pausable;
    bool has_async; /* some function has cp.async: threads keep what is under way */
    unsigned n_waits;
    char *scratch; /* expressions of one instruction; reset for each */
    size_t n_scratch;
};

/* emit_put() - append to the C text */
void emit_put(struct emitter *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* emit_say() - a formatted string that lives until the next instruction */
const char *emit_say(struct emitter *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* emit_unsupported() - fail the module; the message names kernel, line and opcode */
_Noreturn void emit_unsupported(struct emitter *e);

/* ---- types ---- */

bool type_is_float(enum type t); /* f32, f64: kept as C floats; the smaller ones as bits */
bool type_is_small(enum type t); /* f16, bf16 */
bool type_is_pair(enum type t);  /* f16x2, bf16x2 */
bool type_is_16(enum type t);    /* either of these */
bool type_is_signed(enum type t);
enum type type_unsigned(enum type t);
const char *type_c(enum type t);       /* the C type of a value */
const char *type_storage(enum type t); /* the C type of a register */

/* ---- the opcode's parts ---- */

bool op_is(const struct emitter *e, const char *op);
bool op_has(const struct emitter *e, const char *part);
/* op_only() - fail unless each part is a type, a hint, or one of the words in @known */
void op_only(struct emitter *e, const char *known);
enum type op_type(const struct emitter *e, unsigned n); /* T_NONE if there are fewer */
enum type op_the_type(struct emitter *e);
enum space op_space(const struct emitter *e);
const char *op_rounding(struct emitter *e); /* a fenv.h macro; NULL: to nearest */

/* ---- operands as C expressions ---- */

void op_need(struct emitter *e, unsigned n); /* fail if there are fewer than @n operands */
/* operand_as() - an operand's value, of C type type_c(@t) */
const char *operand_as(struct emitter *e, const struct operand *o, enum type t);
void operand_write(struct emitter *e, const struct operand *o, enum type t, const char *expr);
const char *op_arg(struct emitter *e, unsigned n, enum type t);
const char *op_raw_arg(struct emitter *e, unsigned n, enum type t);   /* any NaN will do */
const char *op_float_arg(struct emitter *e, unsigned n, enum type t); /* flushed if .ftz says so */
/* op_result() - operand 0 takes @expr, of C type type_c(@t) */
void op_result(struct emitter *e, enum type t, const char *expr);
/* op_finish() - what .ftz, .sat and .relu make of a float result */
const char *op_finish(struct emitter *e, enum type t, const char *expr);
/* small_widen() - the bits of an f16 or bf16 as a float */
const char *small_widen(struct emitter *e, enum type t, const char *bits);
/* symbol_address() - of a variable, within its state space */
const char *symbol_address(struct emitter *e, const struct symbol *s);

/* emit_pointer() - a C pointer to @n bytes at a memory operand, which faults where the kernel may not go */
const char *emit_pointer(struct emitter *e, const struct operand *o, enum space space, unsigned n);
/* emit_shared_offset() - where in shared memory a memory operand lies, unchecked */
const char *emit_shared_offset(struct emitter *e, const struct operand *o);
/* emit_meet_warp() - all 32 lanes of the warp wait for each other here */
void emit_meet_warp(struct emitter *e);

/* emit_info() - what the module says of itself (info.h); after all functions */
void emit_info(struct emitter *e);

/* ---- handlers, by file ---- */

/* emit_memory.c */
void emit_ld(struct emitter *e);
void emit_st(struct emitter *e);
void emit_atom(struct emitter *e);
void emit_createpolicy(struct emitter *e);
void emit_cvta(struct emitter *e);
void emit_isspacep(struct emitter *e);
void emit_mov(struct emitter *e);

/* emit_arith.c */
void emit_add_sub(struct emitter *e);
void emit_mul(struct emitter *e);
void emit_mul24(struct emitter *e);
void emit_fma(struct emitter *e);
void emit_mad(struct emitter *e);
void emit_div_rem(struct emitter *e);
void emit_min_max(struct emitter *e);
void emit_neg_abs(struct emitter *e);
void emit_unary_float(struct emitter *e);
void emit_testp_copysign(struct emitter *e);

/* emit_bits.c */
void emit_logic(struct emitter *e);
void emit_shift(struct emitter *e);
void emit_bits(struct emitter *e);
void emit_setp(struct emitter *e);
void emit_set(struct emitter *e);
void emit_select(struct emitter *e);

/* emit_cvt.c */
void emit_cvt(struct emitter *e);

/* emit_matrix.c */
void emit_mma(struct emitter *e);
void emit_ldmatrix(struct emitter *e);
void emit_cp(struct emitter *e);

/* emit_texture.c */
void emit_tex(struct emitter *e);

/* emit_control.c */
void emit_activemask(struct emitter *e);
void emit_barrier(struct emitter *e);
void emit_branch(struct emitter *e);
void emit_call(struct emitter *e);
/* A call, unless it is of a function that the device runtime has and the module only declares */
void emit_call_or_runtime(struct emitter *e);
void emit_exit(struct emitter *e);
void emit_fence(struct emitter *e);
void emit_match(struct emitter *e);
void emit_depend(struct emitter *e);
void emit_nothing(struct emitter *e);
void emit_prefetch(struct emitter *e);
void emit_redux(struct emitter *e);
void emit_shfl(struct emitter *e);
void emit_sleep(struct emitter *e);
void emit_step(struct emitter *e); /* lanes at this instruction wait for each other */
void emit_vote(struct emitter *e);

#endif
