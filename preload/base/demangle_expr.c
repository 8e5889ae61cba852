/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/base/demangle_ast.h"

#include <string.h>

/* ------------------------------------------------------------------------- operators */

const struct dm_operator *dm_operator(const char *at)
{
    static const struct dm_operator all[] = {
        { "aN", "&=", 2 },        { "aS", "=", 2 },        { "aa", "&&", 2 },
        { "ad", "&", 1 },         { "an", "&", 2 },        { "at", "alignof ", 1 },
        { "aw", "co_await ", 1 }, { "az", "alignof ", 1 }, { "cl", "()", 2 },
        { "cm", ",", 2 },         { "co", "~", 1 },        { "dV", "/=", 2 },
        { "da", "delete[] ", 1 }, { "de", "*", 1 },        { "dl", "delete ", 1 },
        { "ds", ".*", 2 },        { "dt", ".", 2 },        { "dv", "/", 2 },
        { "eO", "^=", 2 },        { "eo", "^", 2 },        { "eq", "==", 2 },
        { "ge", ">=", 2 },        { "gt", ">", 2 },        { "ix", "[]", 2 },
        { "lS", "<<=", 2 },       { "le", "<=", 2 },       { "ls", "<<", 2 },
        { "lt", "<", 2 },         { "mI", "-=", 2 },       { "mL", "*=", 2 },
        { "mi", "-", 2 },         { "ml", "*", 2 },        { "mm", "--", 1 },
        { "na", "new[]", 3 },     { "ne", "!=", 2 },       { "ng", "-", 1 },
        { "nt", "!", 1 },         { "nw", "new", 3 },      { "oR", "|=", 2 },
        { "oo", "||", 2 },        { "or", "|", 2 },        { "pL", "+=", 2 },
        { "pl", "+", 2 },         { "pm", "->*", 2 },      { "pp", "++", 1 },
        { "ps", "+", 1 },         { "pt", "->", 2 },       { "qu", "?", 3 },
        { "rM", "%=", 2 },        { "rS", ">>=", 2 },      { "rm", "%", 2 },
        { "rs", ">>", 2 },        { "ss", "<=>", 2 },      { "st", "sizeof ", 1 },
        { "sz", "sizeof ", 1 },   { "te", "typeid ", 1 },  { "ti", "typeid ", 1 },
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (at[0] == all[i].code[0] && at[1] == all[i].code[1])
            return &all[i];
    return NULL;
}

/* ------------------------------------------------------------------------- literals */

/* After the L, with its E. */
struct dm_node *dm_literal(struct dm *d)
{
    if (dm_take2(d, "_Z")) {
        struct dm_node *function = dm_encoding(d);
        return dm_take(d, 'E') ? function : NULL;
    }
    if (*d->at == '_' || *d->at == 'Z')
        return NULL;
    struct dm_node *type = dm_type(d);
    struct dm_node *node = type ? dm_new(d, DM_LITERAL, type, NULL) : NULL;
    if (!node)
        return NULL;
    for (node->text = d->at; *d->at && *d->at != 'E'; d->at++)
        node->n++;
    return dm_take(d, 'E') ? node : NULL;
}

/* ------------------------------------------------------------------------- expressions */

/* Until E. Return: a list, which may be empty. */
static struct dm_node *expressions(struct dm *d)
{
    struct dm_node *list = NULL, **end = &list;
    if (dm_take(d, 'E'))
        return dm_new(d, DM_LIST, NULL, NULL);
    while (!dm_take(d, 'E'))
        if (!dm_append(d, &end, dm_expression(d)))
            return NULL;
    return list;
}

static struct dm_node *with_args(struct dm *d, struct dm_node *name)
{
    struct dm_node *args;
    if (!name || *d->at != 'I')
        return name;
    return dm_template_args(d, false, &args) ? dm_new(d, DM_TEMPLATE, name, args) : NULL;
}

static struct dm_node *simple_name(struct dm *d)
{
    if (dm_take2(d, "on"))
        return with_args(d, dm_unqualified(d, NULL, NULL));
    if (dm_take2(d, "dn")) {
        struct dm_node *type = *d->at >= '0' && *d->at <= '9' ? dm_source_name(d) : dm_type(d);
        return type ? dm_text(d, DM_WRAPPED, "~", type, NULL) : NULL;
    }
    return with_args(d, dm_unqualified(d, NULL, NULL));
}

/* After "sr". */
static struct dm_node *scoped_name(struct dm *d)
{
    bool names = *d->at >= '0' && *d->at <= '9', levels = names || dm_take(d, 'N');
    struct dm_node *so_far = names ? simple_name(d) : dm_type(d);
    if (so_far && *d->at == 'I')
        so_far = with_args(d, so_far);
    while (so_far && levels && !dm_take(d, 'E')) {
        struct dm_node *name = simple_name(d);
        so_far = name ? dm_new(d, DM_NESTED, so_far, name) : NULL;
    }
    struct dm_node *name = so_far ? simple_name(d) : NULL;
    return name ? dm_new(d, DM_NESTED, so_far, name) : NULL;
}

/* After "cv". */
static struct dm_node *conversion(struct dm *d)
{
    struct dm_node *type = dm_type(d);
    struct dm_node *what = !type ? NULL : dm_take(d, '_') ? expressions(d) : dm_expression(d);
    return what ? dm_new(d, DM_CAST, type, what) : NULL;
}

/* After "f": a parameter of the function. */
static struct dm_node *function_param(struct dm *d)
{
    uint32_t level, n = 0;
    if (dm_take(d, 'L') && (!dm_number(d, &level) || !dm_take(d, 'p')))
        return NULL;
    while (*d->at == 'r' || *d->at == 'V' || *d->at == 'K')
        d->at++;
    bool first = *d->at == '_';
    if ((!first && !dm_number(d, &n)) || !dm_take(d, '_'))
        return NULL;
    struct dm_node *node = dm_text(d, DM_WRAPPED, "{parm#", NULL, NULL);
    if (!node)
        return NULL;
    node->flags = first ? 1 : n + 2;
    node->text2 = "}";
    return node;
}

static struct dm_node *named_cast(struct dm *d)
{
    static const char codes[][3] = { "sc", "dc", "cc", "rc" };
    static const char *const texts[] = { "static_cast", "dynamic_cast", "const_cast",
                                         "reinterpret_cast" };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (dm_take2(d, codes[i])) {
            struct dm_node *type = dm_type(d), *what = type ? dm_expression(d) : NULL;
            return what ? dm_text(d, DM_CAST, texts[i], type, what) : NULL;
        }
    return NULL;
}

static struct dm_node *wrapped(struct dm *d, const char *before, struct dm_node *a,
                               const char *after)
{
    struct dm_node *node = a ? dm_text(d, DM_WRAPPED, before, a, NULL) : NULL;
    if (node)
        node->text2 = after;
    return node;
}

/* What no operator of the table begins. *@read: it was one of these. */
static struct dm_node *primary(struct dm *d, bool *read)
{
    *read = true;
    if (dm_take(d, 'L'))
        return dm_literal(d);
    if (*d->at == 'T' || *d->at == 'S') {
        if (*d->at == 'T' && d->at[1] != 's' && d->at[1] != 'u' && d->at[1] != 'e') {
            d->at++;
            return dm_template_param(d);
        }
        return dm_type(d);
    }
    if (dm_take2(d, "sr"))
        return scoped_name(d);
    if (dm_take2(d, "cv"))
        return conversion(d);
    if (dm_take2(d, "sp")) {
        struct dm_node *pattern = dm_expression(d);
        return pattern ? dm_new(d, DM_EXPANSION, pattern, NULL) : NULL;
    }
    if (dm_take2(d, "sZ"))
        return wrapped(d, "sizeof...(", dm_expression(d), ")");
    if (dm_take2(d, "nx"))
        return wrapped(d, "noexcept (", dm_expression(d), ")");
    if (dm_take2(d, "cl")) {
        struct dm_node *what = dm_expression(d), *args = what ? expressions(d) : NULL;
        return args ? dm_new(d, DM_CALL, what, args) : NULL;
    }
    if (dm_take2(d, "il"))
        return wrapped(d, "{", expressions(d), "}");
    if (dm_take2(d, "tl")) {
        struct dm_node *type = dm_type(d),
                       *what = type ? wrapped(d, "{", expressions(d), "}") : NULL;
        return what ? dm_new(d, DM_CONVERSION, type, what) : NULL;
    }
    if (d->at[0] == 'f' && (d->at[1] == 'p' || d->at[1] == 'L')) {
        d->at += d->at[1] == 'p' ? 2 : 1;
        return function_param(d);
    }
    if ((*d->at >= '0' && *d->at <= '9') || (d->at[0] == 'o' && d->at[1] == 'n'))
        return simple_name(d);
    struct dm_node *cast = named_cast(d);
    *read = cast != NULL;
    return cast;
}

static struct dm_node *operation(struct dm *d)
{
    bool of_type = !strncmp(d->at, "st", 2) || !strncmp(d->at, "ti", 2) || !strncmp(d->at, "at", 2);
    const struct dm_operator *op = dm_operator(d->at);
    if (!op)
        return NULL;
    d->at += 2;
    if ((!strcmp(op->code, "pp") || !strcmp(op->code, "mm")))
        dm_take(d, '_');
    struct dm_node *a = of_type ? dm_type(d) : dm_expression(d);
    if (!a || op->operands == 1)
        return a ? dm_text(d, DM_UNARY, op->text, a, NULL) : NULL;
    struct dm_node *b = dm_expression(d);
    struct dm_node *c = b && op->operands == 3 ? dm_expression(d) : NULL;
    if (!b || (op->operands == 3 && !c))
        return NULL;
    struct dm_node *node = dm_text(d, c ? DM_TERNARY : DM_BINARY, op->text, a, b);
    if (node)
        node->c = c;
    return node;
}

struct dm_node *dm_expression(struct dm *d)
{
    bool read;
    if (d->depth >= DM_MAX_DEPTH)
        return NULL;
    d->depth++;
    dm_take2(d, "gs");
    struct dm_node *node = primary(d, &read);
    if (!read)
        node = operation(d);
    d->depth--;
    return node;
}
