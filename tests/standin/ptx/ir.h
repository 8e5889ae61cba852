/* SPDX-License-Identifier: Apache-2.0 */
/* A parsed PTX module. parse.c builds it, live.c and emit.c read it; all of it is freed at once. */
#ifndef STANDIN_PTX_IR_H
#define STANDIN_PTX_IR_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>

#include "ptx.h"

enum type {
    T_NONE,
    T_PRED,
    T_B8,
    T_B16,
    T_B32,
    T_B64,
    T_B128,
    T_U8,
    T_U16,
    T_U32,
    T_U64,
    T_S8,
    T_S16,
    T_S32,
    T_S64,
    T_F16,
    T_BF16,
    T_F32,
    T_F64,
    T_F16X2,
    T_BF16X2,
    T_COUNT
};
unsigned type_bytes(enum type type);
/* T_NONE for a word that is no type */
enum type type_named(const char *word, size_t n);

enum space { SPACE_GENERIC, SPACE_GLOBAL, SPACE_CONST, SPACE_SHARED, SPACE_LOCAL, SPACE_PARAM };

/* A register, variable, parameter or label, within its scope. */
enum symbol_kind { SYM_REG, SYM_VAR, SYM_LABEL, SYM_TARGETS, SYM_FUNC };
struct symbol {
    struct symbol *next; /* in its scope */
    const char *name;
    enum symbol_kind kind;
    enum type type;
    /* registers */
    unsigned index; /* within the function: number of the register, or of the label */
    bool lazy_nan;  /* live.c: only arithmetic writes it */
    /* variables */
    enum space space;
    size_t size, align, offset; /* bytes; offset within its space's block */
    bool external;
    bool of_kernel;    /* .shared of one kernel's body, not of the module */
    bool kernel_param; /* a kernel's own parameter */
    int global;        /* index in module->globals, -1: none */
    int argument;      /* .func parameter number, -1: none; returns have -2 - number */
    /* branch target lists */
    struct symbol **targets;
    unsigned n_targets;
    struct function_ir *function;
    bool address_taken; /* functions: a register or variable may hold FUNCTION_ADDRESS(index) */
};
/* What a pointer to the @n-th function that was named is; no memory is there. */
#define FUNCTION_ADDRESS(n) (0x130000000000ull + 16ull * (n))

struct scope {
    struct scope *up;
    struct symbol **buckets; /* 256 */
};

enum operand_kind { O_REG, O_INT, O_F32, O_F64, O_SYM, O_SPECIAL, O_MEM, O_VEC, O_SINK };
struct operand {
    enum operand_kind kind;
    bool negated;          /* !p as a source, or -x */
    struct symbol *sym;    /* O_REG, O_SYM; O_MEM: the base, NULL: absolute */
    int64_t value;         /* O_INT, O_MEM: offset; O_F32, O_F64: the bits */
    const char *word;      /* O_SPECIAL: tid.x */
    struct symbol *other;  /* p|q: q */
    struct operand *parts; /* O_VEC */
    unsigned n_parts;
};

#define MAX_PARTS    16
#define MAX_OPERANDS 8
struct instruction {
    int line;
    const char *opcode; /* with all its parts, for messages */
    const char *part[MAX_PARTS];
    unsigned n_parts;
    struct symbol *guard; /* NULL: always */
    bool guard_negated;
    struct operand operand[MAX_OPERANDS];
    unsigned n_operands;
    struct symbol *label; /* this is a label, not an instruction */
    /* call */
    struct operand call_return, *call_arguments;
    unsigned n_call_arguments;
    struct symbol *callee;
    bool is_indirect;
    struct operand
        call_target; /* is_indirect, until ptx_indirect_calls(): the register that holds a function's address */
    /* live.c */
    uint64_t *live; /* registers live after it; for barriers only */
};

struct function_ir {
    struct function_ir *next;
    const char *name;
    const char *c_name; /* a number, and those characters of the name that C allows */
    bool is_kernel, has_body;
    int line;
    struct symbol **params; /* in order */
    unsigned n_params;
    struct symbol *result; /* .func */
    struct symbol *symbol;
    struct ptx_param_info *param_info;
    size_t params_bytes;
    struct symbol **regs;
    unsigned n_regs, cap_regs;
    unsigned n_labels;
    struct symbol **locals; /* .local and .param variables of the body */
    unsigned n_locals, cap_locals;
    size_t local_bytes, frame_params; /* its own .local, and its .param variables */
    size_t shared_bytes;              /* its own .shared; kernels only */
    /* calls.c */
    bool visiting, settled;
    bool waits;                        /* threads wait for each other in it or in what it calls */
    bool shares_module;                /* .shared of the module is named */
    size_t total_local;                /* bytes a thread, with what it calls */
    size_t shared_base, static_shared; /* kernels only: where shared_bytes begin; the sum */
    unsigned max_threads;
    struct instruction **body;
    size_t n_body, cap_body;
    bool has_barrier;
};

struct module_ir {
    struct function_ir *functions, **last_function;
    unsigned n_functions, n_function_names;
    struct ptx_global *globals;
    size_t n_globals, cap_globals;
    struct ptx_fixup *fixups;
    size_t n_fixups, cap_fixups;
    size_t shared_bytes; /* .shared of the module and of device functions */
    size_t extern_align; /* the strictest of its .extern .shared arrays */
    struct scope scope;
    /* memory and errors */
    struct chunk *chunks;
    size_t n_allocated;
    jmp_buf on_error;
    int status;
    char message[512];
};

void *ir_alloc(struct module_ir *m, size_t n); /* zeroed; leaves through ir_fail */
char *ir_strndup(struct module_ir *m, const char *s, size_t n);
_Noreturn void ir_fail(struct module_ir *m, int status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
#define IR_PUSH(m, array, n, cap, value)                                                           \
    do {                                                                                           \
        if ((n) == (cap)) {                                                                        \
            size_t _cap = (cap) ? (size_t)(cap)*2 : 16;                                            \
            void *_new = ir_alloc((m), _cap * sizeof *(array));                                    \
            if (n)                                                                                 \
                __builtin_memcpy(_new, (array), (n) * sizeof *(array));                            \
            (array) = _new;                                                                        \
            (cap) = _cap;                                                                          \
        }                                                                                          \
        (array)[(n)++] = (value);                                                                  \
    } while (0)

/* All leave through ir_fail() on error; run.c catches. In this order. */
void ptx_parse(struct module_ir *m, const char *text, size_t n);
void ptx_indirect_calls(struct module_ir *m);
void ptx_calls(struct module_ir *m);
void ptx_liveness(struct module_ir *m, struct function_ir *f);
void ptx_lazy_nans(struct function_ir *f);
struct text {
    char *data;
    size_t n, cap;
};
void ptx_emit(struct module_ir *m, struct text *out, bool pausable);

/**
 * ptx_translate() - all of the above: PTX text to C
 * @m: zeroed; to be freed with ir_free() in every case
 * @out: zeroed; its data is the caller's to free
 * Return: PTX_OK, or another enum ptx_status with @m->message set
 */
int ptx_translate(struct module_ir *m, const char *text, size_t n, bool pausable, struct text *out);
void ir_free(struct module_ir *m);

/* Operands that an instruction writes and reads: shared by live.c and emit.c. */
unsigned written_operands(const struct instruction *i); /* how many, from the front */
/* Is this call written as compilers do: arguments and result in .param variables that fit? */
bool call_fits(const struct instruction *i);
/* The same of a function without a body, of which only the declaration is known */
bool call_passes(const struct instruction *i);
bool instruction_in_step(const struct instruction *i);
bool instruction_waits(const struct instruction *i); /* other threads of the block run meanwhile */

#endif
