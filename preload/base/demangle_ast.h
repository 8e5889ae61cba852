/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A mangled name as a tree: demangle.c reads names, demangle_type.c types, demangle_expr.c expressions, demangle_print.c writes them.
 * Source: Itanium C++ ABI, 5.1 "External Names (a.k.a. Mangling)". Thread: one at a time per name.
 */
#ifndef PRELOAD_BASE_DEMANGLE_AST_H
#define PRELOAD_BASE_DEMANGLE_AST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DM_MAX_DEPTH 1024 /* of what lies in one another; each takes less than 1 KiB of stack */

enum dm_kind {
    DM_NAME,      /* text */
    DM_BUILTIN,   /* text, of a type; literals of it end with text2, NULL: are cast to it */
    DM_NESTED,    /* a::b */
    DM_TEMPLATE,  /* a<b>; b: list */
    DM_LIST,      /* a, and the rest b */
    DM_PACK,      /* a: list. What a template's pack holds */
    DM_PARAM,     /* a: what it stands for */
    DM_ENCODING,  /* a: name, b: DM_FUNCTION */
    DM_FUNCTION,  /* a: what it returns, NULL: not said; b: list of parameters, @flags */
    DM_QUALIFIED, /* a, @flags */
    DM_SUFFIXED,  /* a, then text: vendors' qualifiers, _Complex */
    DM_POINTER,   /* to a */
    DM_LREF,
    DM_RREF,
    DM_ARRAY,      /* of a; b: how many, NULL: not said */
    DM_MEMBER,     /* b, of the class a */
    DM_VECTOR,     /* of a; b: how many */
    DM_EXPANSION,  /* a... */
    DM_CTOR,       /* of a; text: "~" for destructors */
    DM_CONVERSION, /* operator a */
    DM_LAMBDA,     /* b: list of parameters, @n */
    DM_UNNAMED,    /* @n */
    DM_TAGGED,     /* a[abi:text] */
    DM_WRAPPED,    /* text a text2 */
    DM_LITERAL,    /* of type a, text */
    DM_UNARY,      /* text a */
    DM_BINARY,     /* a text b */
    DM_TERNARY,    /* a ? b : c */
    DM_CALL,       /* a(b) */
    DM_CAST,       /* (a)b; text: the cast's name, NULL: none */
};

enum {
    DM_CONST = 1,
    DM_VOLATILE = 2,
    DM_RESTRICT = 4,
    DM_LVALUE = 8,
    DM_RVALUE = 16,
    DM_NOEXCEPT = 32
};

struct dm_node {
    enum dm_kind kind;
    unsigned flags;
    uint32_t n; /* a number, or bytes of text */
    const char *
        text; /* not ended by a zero byte: @n says how long it is, where it is no constant of ours */
    const char *text2;
    struct dm_node *a, *b, *c;
};

/* Reading one name. A function that reads returns NULL where it cannot. */
struct dm {
    const char *at; /* ends with a zero byte */
    struct dm_node *nodes;
    size_t n_nodes, max_nodes;
    struct dm_node **subs; /* S_, S0_, ... */
    size_t n_subs;
    struct dm_node *params; /* T_, T0_, ...: list of the template arguments in force */
    unsigned depth, lambdas;
};

/* What a name says of its function besides. */
struct dm_state {
    bool templated; /* it ends with template arguments: the type says what it returns */
    bool no_return; /* constructors, destructors, conversions */
    unsigned flags; /* of a member function */
};

/* In demangle.c. */
static inline bool dm_is_digit(char c)
{
    return c >= '0' && c <= '9';
}
/* NULL where @a is: of a node that a part of cannot be read, nothing can. */
struct dm_node *dm_around(struct dm *d, enum dm_kind kind, struct dm_node *a);
/* @node, which S_ may name from now on. */
struct dm_node *dm_keep(struct dm *d, struct dm_node *node);
/* @state: filled in for the name of a function; NULL: it is the name of a type. */
struct dm_node *dm_name(struct dm *d, struct dm_state *state);
/* What an S is for: a node that was read before, or an abbreviation. */
struct dm_node *dm_substitution(struct dm *d);
/* @name<...>, whose arguments follow. */
struct dm_node *dm_with_args(struct dm *d, struct dm_node *name, struct dm_state *state);
/* At least one type, until one of @ends. */
struct dm_node *dm_parameters(struct dm *d, const char *ends);
unsigned dm_qualifiers(struct dm *d);
/* Is what follows a function type's own & or &&? */
bool dm_ends_with_reference(const struct dm *d);
struct dm_node *dm_new(struct dm *d, enum dm_kind kind, struct dm_node *a, struct dm_node *b);
struct dm_node *dm_text(struct dm *d, enum dm_kind kind, const char *text, struct dm_node *a,
                        struct dm_node *b);
bool dm_take(struct dm *d, char c);
bool dm_take2(struct dm *d, const char *code);
/* Appends to a list whose last link is **@end. Return: false without an item. */
bool dm_append(struct dm *d, struct dm_node ***end, struct dm_node *item);
bool dm_number(struct dm *d, uint32_t *n);
struct dm_node *dm_encoding(struct dm *d);
struct dm_node *dm_unqualified(struct dm *d, struct dm_node *within, struct dm_state *state);
/* @args: the list that was read, may be NULL for none. Return: false where it cannot be read. */
bool dm_template_args(struct dm *d, bool tag, struct dm_node **args);
struct dm_node *dm_template_param(struct dm *d);
struct dm_node *dm_source_name(struct dm *d);

/* In demangle_type.c. */
struct dm_node *dm_type(struct dm *d);

/* In demangle_expr.c. Operators: by their two letters. */
struct dm_operator {
    char code[3];
    const char *text;
    unsigned operands;
};
/* The operator whose two letters stand at @at, NULL: none. */
const struct dm_operator *dm_operator(const char *at);
/* The expression that follows. */
struct dm_node *dm_expression(struct dm *d);
/* The literal that follows its L, with its E. */
struct dm_node *dm_literal(struct dm *d);

/* In demangle_print.c. Return: to be freed; NULL without memory, or where it is too long. */
char *dm_print(const struct dm_node *node);

#endif
