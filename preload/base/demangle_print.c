/* SPDX-License-Identifier: Apache-2.0 */
/* Layout and spaces are those of GNU's demangler, which c++filt, nm and profilers print by. */
#include "preload/base/demangle_ast.h"

#include <stdlib.h>
#include <string.h>

#define MAX_TEXT  (4u << 20) /* substitutions may double what they stand in, again and again */
#define MAX_STEPS (4u << 20)

struct out {
    char *text;
    size_t n, room;
    char last;
    bool failed;
    unsigned depth, steps;
    int64_t pack; /* which element of a pack is meant, below 0: all */
};

static void put(struct out *o, const char *text, size_t n)
{
    if (o->failed)
        return;
    if (o->n + n + 1 > o->room) {
        size_t room = 2 * (o->n + n) + 256;
        char *grown = room <= 2 * MAX_TEXT ? realloc(o->text, room) : NULL;
        o->failed = !grown;
        if (!grown)
            return;
        o->text = grown;
        o->room = room;
    }
    memcpy(o->text + o->n, text, n);
    o->n += n;
    o->text[o->n] = 0;
    o->last = n ? text[n - 1] : o->last;
}

static void say(struct out *o, const char *text)
{
    put(o, text, strlen(text));
}

static void say_number(struct out *o, uint32_t number)
{
    char digits[12];
    size_t n = sizeof digits;
    do
        digits[--n] = (char)('0' + number % 10);
    while (number /= 10);
    put(o, digits + n, sizeof digits - n);
}

static void left(struct out *o, const struct dm_node *node);
static void right(struct out *o, const struct dm_node *node);

static void print(struct out *o, const struct dm_node *node)
{
    left(o, node);
    right(o, node);
}

/* ------------------------------------------------------------------------- packs */

/* The node that a parameter stands for: within an expansion one of its pack. */
static const struct dm_node *meant(const struct out *o, const struct dm_node *node)
{
    while (node && node->kind == DM_PARAM) {
        node = node->a;
        if (node->kind != DM_PACK || o->pack < 0)
            return node;
        node = node->a;
        for (int64_t i = 0; node && i < o->pack; i++)
            node = node->b;
        node = node ? node->a : NULL;
    }
    return node;
}

static const struct dm_node *find_pack(struct out *o, const struct dm_node *node)
{
    if (!node || o->depth >= DM_MAX_DEPTH || ++o->steps > MAX_STEPS)
        return NULL;
    if (node->kind == DM_PARAM)
        return node->a->kind == DM_PACK ? node->a : NULL;
    if (node->kind == DM_EXPANSION || node->kind == DM_LAMBDA || node->kind == DM_CTOR)
        return NULL;
    o->depth++;
    const struct dm_node *found = find_pack(o, node->a);
    found = found ? found : find_pack(o, node->b);
    found = found ? found : find_pack(o, node->c);
    o->depth--;
    return found;
}

static void print_expansion(struct out *o, const struct dm_node *node)
{
    const struct dm_node *pack = find_pack(o, node->a);
    int64_t before = o->pack;
    if (!pack) {
        print(o, node->a);
        say(o, "...");
        return;
    }
    o->pack = 0;
    for (const struct dm_node *item = pack->a; item; item = item->b) {
        print(o, node->a);
        if (item->b)
            say(o, ", ");
        o->pack++;
    }
    o->pack = before;
}

/* What prints as nothing takes its comma along; GNU's demangler takes its space for what came last. */
static void print_list(struct out *o, const struct dm_node *list)
{
    bool any = false;
    for (; list && list->a; list = list->b) {
        size_t before = o->n;
        if (any)
            say(o, ", ");
        size_t from = o->n;
        print(o, list->a);
        if (o->n == from)
            o->n = before;
        any = any || o->n > from;
    }
}

/* ------------------------------------------------------------------------- types */

/* What it is after qualifiers and the like: arrays and functions are written around what points to them. */
static bool is_wide(const struct out *o, const struct dm_node *node)
{
    for (node = meant(o, node); node && node->kind == DM_QUALIFIED;)
        node = meant(o, node->a);
    return node && (node->kind == DM_ARRAY || node->kind == DM_FUNCTION);
}

static bool has_right(struct out *o, const struct dm_node *node)
{
    bool has = false;
    if (o->depth >= DM_MAX_DEPTH)
        return false;
    o->depth++;
    node = meant(o, node);
    if (node && (node->kind == DM_ARRAY || node->kind == DM_FUNCTION))
        has = true;
    else if (node && (node->kind == DM_POINTER || node->kind == DM_LREF || node->kind == DM_RREF ||
                      node->kind == DM_QUALIFIED))
        has = has_right(o, node->a);
    else if (node && node->kind == DM_MEMBER)
        has = has_right(o, node->b);
    o->depth--;
    return has;
}

static void say_qualifiers(struct out *o, unsigned flags)
{
    if (flags & DM_CONST)
        say(o, " const");
    if (flags & DM_VOLATILE)
        say(o, " volatile");
    if (flags & DM_RESTRICT)
        say(o, " restrict");
    if (flags & DM_LVALUE)
        say(o, " &");
    if (flags & DM_RVALUE)
        say(o, " &&");
    if (flags & DM_NOEXCEPT)
        say(o, " noexcept");
}

/* A reference to a reference is one, and to an lvalue if one of them is. */
static const struct dm_node *collapsed(const struct out *o, const struct dm_node *node,
                                       const char **sign)
{
    const struct dm_node *to = meant(o, node->a);
    *sign = node->kind == DM_LREF ? "&" : "&&";
    while (to && (to->kind == DM_LREF || to->kind == DM_RREF)) {
        if (to->kind == DM_LREF)
            *sign = "&";
        to = meant(o, to->a);
    }
    return to;
}

static void left_of_pointer(struct out *o, const struct dm_node *to, const struct dm_node *class,
                            const char *sign)
{
    left(o, to);
    bool wide = is_wide(o, to);
    if (wide && o->last != ' ' && o->last != '(' && o->last != '*')
        say(o, " ");
    if (wide)
        say(o, "(");
    if (class && !wide)
        say(o, " ");
    if (class) {
        print(o, class);
        say(o, "::");
    }
    say(o, sign);
}

static void right_of_pointer(struct out *o, const struct dm_node *to)
{
    if (is_wide(o, to))
        say(o, ")");
    right(o, to);
}

static void right_of_function(struct out *o, const struct dm_node *type)
{
    say(o, "(");
    print_list(o, type->b);
    say(o, ")");
    if (type->a)
        right(o, type->a);
    say_qualifiers(o, type->flags);
}

static void right_of_array(struct out *o, const struct dm_node *array)
{
    if (o->last != ']')
        say(o, " ");
    say(o, "[");
    if (array->b)
        print(o, array->b);
    say(o, "]");
    right(o, array->a);
}

/* ------------------------------------------------------------------------- names */

static void left_of_encoding(struct out *o, const struct dm_node *encoding)
{
    const struct dm_node *returns = encoding->b->a;
    if (returns) {
        left(o, returns);
        if (!has_right(o, returns))
            say(o, " ");
    }
    print(o, encoding->a);
}

static void print_template(struct out *o, const struct dm_node *node)
{
    int64_t before = o->pack;
    print(o, node->a);
    if (o->last == '<')
        say(o, " ");
    say(o, "<");
    print_list(o, node->b);
    if (o->last == '>')
        say(o, " ");
    say(o, ">");
    o->pack = before;
}

static void print_literal(struct out *o, const struct dm_node *node)
{
    const struct dm_node *type = node->a;
    const char *ending = type->kind == DM_BUILTIN ? type->text2 : NULL;
    const char *text = node->text;
    size_t n = node->n;
    if (ending && *ending == 'b' && n == 1 && (*text == '0' || *text == '1')) {
        say(o, *text == '1' ? "true" : "false");
        return;
    }
    bool plain = ending && *ending != 'b' && *ending != 'f';
    if (!plain) {
        say(o, "(");
        print(o, type);
        say(o, ")");
    }
    if (n && *text == 'n') {
        say(o, "-");
        text++;
        n--;
    }
    bool is_float = ending && *ending == 'f';
    if (is_float)
        say(o, "[");
    put(o, text, n);
    say(o, is_float ? "]" : plain ? ending : "");
}

/* ------------------------------------------------------------------------- expressions */

static void print_operand(struct out *o, const struct dm_node *node)
{
    bool simple = node->kind == DM_NAME || node->kind == DM_NESTED ||
                  (node->kind == DM_WRAPPED && !node->a) ||
                  (node->kind == DM_WRAPPED && node->text[0] == '{');
    say(o, simple ? "" : "(");
    print(o, node);
    say(o, simple ? "" : ")");
}

static void print_binary(struct out *o, const struct dm_node *node)
{
    bool greater = !strcmp(node->text, ">");
    say(o, greater ? "(" : "");
    print_operand(o, node->a);
    if (!strcmp(node->text, "[]")) {
        say(o, "[");
        print(o, node->b);
        say(o, "]");
    } else {
        say(o, node->text);
        print_operand(o, node->b);
    }
    say(o, greater ? ")" : "");
}

static void print_cast(struct out *o, const struct dm_node *node)
{
    if (node->text) {
        say(o, node->text);
        say(o, "<");
        print(o, node->a);
        say(o, o->last == '>' ? " >(" : ">(");
        print(o, node->b);
        say(o, ")");
        return;
    }
    say(o, "(");
    print(o, node->a);
    say(o, ")");
    if (node->b->kind == DM_LIST) {
        say(o, "(");
        print_list(o, node->b);
        say(o, ")");
    } else {
        print_operand(o, node->b);
    }
}

static void print_expression(struct out *o, const struct dm_node *node)
{
    switch (node->kind) {
    case DM_UNARY:
        say(o, node->text);
        if (!strcmp(node->text, "&") && node->a->kind == DM_ENCODING &&
            node->a->a->kind == DM_NESTED)
            print(o, node->a->a);
        else
            print_operand(o, node->a);
        break;
    case DM_BINARY: print_binary(o, node); break;
    case DM_TERNARY:
        print_operand(o, node->a);
        say(o, "?");
        print_operand(o, node->b);
        say(o, " : ");
        print_operand(o, node->c);
        break;
    case DM_CALL:
        print_operand(o, node->a);
        say(o, "(");
        print_list(o, node->b);
        say(o, ")");
        break;
    default: print_cast(o, node);
    }
}

/* ------------------------------------------------------------------------- all of it */

static void say_text(struct out *o, const struct dm_node *node)
{
    put(o, node->text, node->n);
}

static void print_around(struct out *o, const struct dm_node *node)
{
    switch (node->kind) {
    case DM_SUFFIXED:
        print(o, node->a);
        say(o, node->flags == 1 ? " " : node->flags == 2 ? " [clone " : "");
        say_text(o, node);
        say(o, node->flags == 2 ? "]" : "");
        break;
    case DM_CTOR:
        say_text(o, node);
        print(o, node->a);
        break;
    case DM_CONVERSION:
        say(o, node->b ? "" : "operator ");
        print(o, node->a);
        if (node->b)
            print(o, node->b);
        break;
    case DM_LAMBDA:
        say(o, "{lambda(");
        print_list(o, node->b);
        say(o, ")#");
        say_number(o, node->n + 1);
        say(o, "}");
        break;
    case DM_UNNAMED:
        say(o, "{unnamed type#");
        say_number(o, node->n + 1);
        say(o, "}");
        break;
    case DM_TAGGED:
        print(o, node->a);
        say(o, "[abi:");
        say_text(o, node);
        say(o, "]");
        break;
    default: /* DM_WRAPPED */
        say_text(o, node);
        if (node->a)
            print(o, node->a);
        else
            say_number(o, node->flags);
        say(o, node->text2 ? node->text2 : "");
    }
}

static void left_of(struct out *o, const struct dm_node *node)
{
    const char *sign;
    switch (node->kind) {
    case DM_NAME:
    case DM_BUILTIN: say_text(o, node); break;
    case DM_NESTED:
        print(o, node->a);
        say(o, "::");
        print(o, node->b);
        break;
    case DM_TEMPLATE: print_template(o, node); break;
    case DM_LIST: print_list(o, node); break;
    case DM_PACK: print_list(o, node->a); break;
    case DM_PARAM: {
        const struct dm_node *to = meant(o, node);
        int64_t before = o->pack;
        o->pack = -1;
        if (to)
            left(o, to);
        o->pack = before;
        break;
    }
    case DM_ENCODING: left_of_encoding(o, node); break;
    case DM_FUNCTION:
        if (node->a) {
            left(o, node->a);
            if (!has_right(o, node->a))
                say(o, " ");
        }
        break;
    case DM_QUALIFIED: {
        const struct dm_node *to = meant(o, node->a);
        bool again = node->a->kind == DM_PARAM && to && to->kind == DM_QUALIFIED;
        left(o, node->a);
        say_qualifiers(o, node->flags & ~(again ? to->flags : 0));
        break;
    }
    case DM_POINTER: left_of_pointer(o, node->a, NULL, "*"); break;
    case DM_LREF:
    case DM_RREF: {
        const struct dm_node *to = collapsed(o, node, &sign);
        if (to)
            left_of_pointer(o, to, NULL, sign);
        break;
    }
    case DM_MEMBER: left_of_pointer(o, node->b, node->a, "*"); break;
    case DM_ARRAY: left(o, node->a); break;
    case DM_VECTOR:
        print(o, node->a);
        say(o, " __vector(");
        if (node->b)
            print(o, node->b);
        say(o, ")");
        break;
    case DM_EXPANSION: print_expansion(o, node); break;
    case DM_LITERAL: print_literal(o, node); break;
    case DM_UNARY:
    case DM_BINARY:
    case DM_TERNARY:
    case DM_CALL:
    case DM_CAST: print_expression(o, node); break;
    default: print_around(o, node);
    }
}

static void right_of(struct out *o, const struct dm_node *node)
{
    const char *sign;
    const struct dm_node *to;
    switch (node->kind) {
    case DM_PARAM: {
        int64_t before = o->pack;
        to = meant(o, node);
        o->pack = -1;
        if (to)
            right(o, to);
        o->pack = before;
        break;
    }
    case DM_ENCODING: right_of_function(o, node->b); break;
    case DM_FUNCTION: right_of_function(o, node); break;
    case DM_QUALIFIED: right(o, node->a); break;
    case DM_POINTER: right_of_pointer(o, node->a); break;
    case DM_LREF:
    case DM_RREF:
        to = collapsed(o, node, &sign);
        if (to)
            right_of_pointer(o, to);
        break;
    case DM_MEMBER: right_of_pointer(o, node->b); break;
    case DM_ARRAY: right_of_array(o, node); break;
    default: break;
    }
}

static void enter(struct out *o, const struct dm_node *node,
                  void (*side)(struct out *, const struct dm_node *))
{
    if (o->depth >= DM_MAX_DEPTH || ++o->steps > MAX_STEPS)
        o->failed = true;
    if (o->failed)
        return;
    o->depth++;
    side(o, node);
    o->depth--;
}

static void left(struct out *o, const struct dm_node *node)
{
    enter(o, node, left_of);
}

static void right(struct out *o, const struct dm_node *node)
{
    enter(o, node, right_of);
}

char *dm_print(const struct dm_node *node)
{
    struct out o = { .pack = -1 };
    print(&o, node);
    if (!o.failed && o.n)
        return o.text;
    free(o.text);
    return NULL;
}
