/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/base/demangle.h"

#include "preload/base/demangle_ast.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------- nodes */

struct dm_node *dm_new(struct dm *d, enum dm_kind kind, struct dm_node *a, struct dm_node *b)
{
    if (d->n_nodes == d->max_nodes)
        return NULL;
    struct dm_node *node = &d->nodes[d->n_nodes++];
    *node = (struct dm_node){ .kind = kind, .a = a, .b = b };
    return node;
}

struct dm_node *dm_text(struct dm *d, enum dm_kind kind, const char *text, struct dm_node *a,
                        struct dm_node *b)
{
    struct dm_node *node = dm_new(d, kind, a, b);
    if (node) {
        node->text = text;
        node->n = (uint32_t)strlen(text);
    }
    return node;
}

/* Of a node that a part of cannot be read, nothing can. */
struct dm_node *dm_around(struct dm *d, enum dm_kind kind, struct dm_node *a)
{
    return a ? dm_new(d, kind, a, NULL) : NULL;
}

bool dm_append(struct dm *d, struct dm_node ***end, struct dm_node *item)
{
    struct dm_node *link = dm_around(d, DM_LIST, item);
    if (!link)
        return false;
    **end = link;
    *end = &link->b;
    return true;
}

bool dm_take(struct dm *d, char c)
{
    bool is = *d->at == c && c;
    d->at += is;
    return is;
}

bool dm_take2(struct dm *d, const char *code)
{
    bool is = d->at[0] == code[0] && d->at[1] == code[1];
    d->at += is ? 2 : 0;
    return is;
}

bool dm_number(struct dm *d, uint32_t *n)
{
    *n = 0;
    if (!dm_is_digit(*d->at))
        return false;
    while (dm_is_digit(*d->at) && *n < 100000000)
        *n = *n * 10 + (uint32_t)(*d->at++ - '0');
    return !dm_is_digit(*d->at);
}

/* A place in a sequence: "_" is 0, "0_" is 1; to base 36 or 10. */
static bool sequence(struct dm *d, unsigned base, uint32_t *n)
{
    *n = 0;
    if (dm_take(d, '_'))
        return true;
    do {
        char c = *d->at;
        unsigned digit = dm_is_digit(c)         ? (unsigned)(c - '0')
                         : c >= 'A' && c <= 'Z' ? (unsigned)(c - 'A') + 10
                                                : base;
        if (digit >= base || *n > 100000000)
            return false;
        *n = *n * base + digit;
        d->at++;
    } while (*d->at != '_');
    d->at++;
    ++*n;
    return true;
}

/* A candidate for S_. */
struct dm_node *dm_keep(struct dm *d, struct dm_node *node)
{
    if (node)
        d->subs[d->n_subs++] = node; /* there is room for a node each */
    return node;
}

/* ------------------------------------------------------------------------- names */

struct dm_node *dm_source_name(struct dm *d)
{
    uint32_t n;
    if (!dm_number(d, &n) || !n || strnlen(d->at, n) < n)
        return NULL;
    struct dm_node *node = dm_new(d, DM_NAME, NULL, NULL);
    if (!node)
        return NULL;
    node->text = d->at;
    node->n = n;
    d->at += n;
    if (n > 9 && !strncmp(node->text, "_GLOBAL_", 8) && strchr("_.$", node->text[8]) &&
        node->text[9] == 'N') {
        node->text = "(anonymous namespace)";
        node->n = (uint32_t)strlen(node->text);
    }
    return node;
}

/* A function type's own & or &&. */
bool dm_ends_with_reference(const struct dm *d)
{
    return (d->at[0] == 'R' || d->at[0] == 'O') && d->at[1] == 'E';
}

struct dm_node *dm_parameters(struct dm *d, const char *ends)
{
    struct dm_node *list = NULL, **end = &list;
    if (dm_take(d, 'v'))
        return dm_new(d, DM_LIST, NULL, NULL);
    do {
        if (!dm_append(d, &end, dm_type(d)))
            return NULL;
    } while (*d->at && !strchr(ends, *d->at) && !dm_ends_with_reference(d));
    return list;
}

static struct dm_node *unnamed(struct dm *d)
{
    struct dm_node *node = dm_new(d, DM_UNNAMED, NULL, NULL);
    if (!node)
        return NULL;
    if (d->at[-1] == 'l') {
        node->kind = DM_LAMBDA;
        d->lambdas++;
        node->b = dm_parameters(d, "E");
        d->lambdas--;
        if (!node->b || !dm_take(d, 'E'))
            return NULL;
    }
    return sequence(d, 10, &node->n) ? node : NULL;
}

/* What constructors and destructors are named by. */
static struct dm_node *base_name(struct dm_node *name)
{
    while (name && (name->kind == DM_NESTED || name->kind == DM_TEMPLATE ||
                    name->kind == DM_TAGGED || name->kind == DM_SUFFIXED))
        name = name->kind == DM_NESTED ? name->b : name->a;
    return name;
}

static struct dm_node *special_member(struct dm *d, struct dm_node *within, struct dm_state *state)
{
    bool ctor = *d->at++ == 'C';
    bool inherits = ctor && dm_take(d, 'I');
    if (!within || !dm_is_digit(*d->at++))
        return NULL;
    if (inherits && !dm_type(d))
        return NULL;
    if (state)
        state->no_return = true;
    return dm_text(d, DM_CTOR, ctor ? "" : "~", base_name(within), NULL);
}

static struct dm_node *operator_name(struct dm *d, struct dm_state *state)
{
    if (dm_take2(d, "cv")) {
        if (state)
            state->no_return = true;
        return dm_around(d, DM_CONVERSION, dm_type(d));
    }
    if (dm_take2(d, "li")) {
        struct dm_node *name = dm_source_name(d);
        return name ? dm_text(d, DM_WRAPPED, "operator\"\" ", name, NULL) : NULL;
    }
    const struct dm_operator *op = dm_operator(d->at);
    if (!op)
        return NULL;
    d->at += 2;
    bool word = op->text[0] >= 'a' && op->text[0] <= 'z';
    struct dm_node *name = dm_text(d, DM_NAME, op->text, NULL, NULL);
    if (name && name->text[name->n - 1] == ' ')
        name->n--; /* which stands before an operand */
    return dm_text(d, DM_WRAPPED, word ? "operator " : "operator", name, NULL);
}

struct dm_node *dm_unqualified(struct dm *d, struct dm_node *within, struct dm_state *state)
{
    struct dm_node *name;
    dm_take(d, 'L'); /* of internal linkage */
    if (dm_is_digit(*d->at))
        name = dm_source_name(d);
    else if (dm_take2(d, "Ul") || dm_take2(d, "Ut"))
        name = unnamed(d);
    else if (*d->at == 'C' || (*d->at == 'D' && dm_is_digit(d->at[1])))
        name = special_member(d, within, state);
    else
        name = operator_name(d, state);
    while (name && dm_take(d, 'B')) {
        struct dm_node *tag = dm_source_name(d),
                       *tagged = tag ? dm_around(d, DM_TAGGED, name) : NULL;
        if (tagged) {
            tagged->text = tag->text;
            tagged->n = tag->n;
        }
        name = tagged;
    }
    return name;
}

static struct dm_node *nested(struct dm *d, struct dm_node *a, struct dm_node *b)
{
    return a && b ? dm_new(d, DM_NESTED, a, b) : a ? NULL : b;
}

/* Abbreviations for names of the standard library, and the name that their constructors have. */
static struct dm_node *abbreviation(struct dm *d)
{
    static const struct {
        char code;
        const char *text, *base;
    } all[] = {
        { 'a', "allocator", NULL },          { 'b', "basic_string", NULL },
        { 's', "string", "basic_string" },   { 'i', "istream", "basic_istream" },
        { 'o', "ostream", "basic_ostream" }, { 'd', "iostream", "basic_iostream" },
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (*d->at == all[i].code) {
            d->at++;
            bool member =
                all[i].base && (*d->at == 'C' || (*d->at == 'D' && dm_is_digit(d->at[1])));
            const char *arguments = all[i].code == 's'
                                        ? "<char, std::char_traits<char>, std::allocator<char> >"
                                        : "<char, std::char_traits<char> >";
            struct dm_node *std = dm_text(d, DM_NAME, "std", NULL, NULL);
            struct dm_node *name =
                dm_text(d, DM_NAME, member ? all[i].base : all[i].text, NULL, NULL);
            struct dm_node *complete = nested(d, std, name);
            return complete && member ? dm_text(d, DM_SUFFIXED, arguments, complete, NULL)
                                      : complete;
        }
    return NULL;
}

/* After the S; St is not asked for. */
struct dm_node *dm_substitution(struct dm *d)
{
    uint32_t n;
    if (*d->at >= 'a' && *d->at <= 'z')
        return abbreviation(d);
    return sequence(d, 36, &n) && n < d->n_subs ? d->subs[n] : NULL;
}

struct dm_node *dm_template_param(struct dm *d)
{
    uint32_t n;
    if (!sequence(d, 10, &n))
        return NULL;
    if (d->lambdas) {
        struct dm_node *any = dm_text(d, DM_WRAPPED, "auto:", NULL, NULL);
        if (any)
            any->flags = n + 1;
        return any;
    }
    struct dm_node *arg = d->params;
    for (uint32_t i = 0; arg && i < n; i++)
        arg = arg->b;
    return arg && arg->a ? dm_around(d, DM_PARAM, arg->a) : NULL;
}

static struct dm_node *template_arg(struct dm *d);

/* Until E. */
static bool arguments(struct dm *d, struct dm_node ***end)
{
    while (!dm_take(d, 'E'))
        if (!dm_append(d, end, template_arg(d)))
            return false;
    return true;
}

static struct dm_node *template_arg(struct dm *d)
{
    struct dm_node *node;
    if (dm_take(d, 'L'))
        return dm_literal(d);
    if (dm_take(d, 'X')) {
        node = dm_expression(d);
        return dm_take(d, 'E') ? node : NULL;
    }
    if (!dm_take(d, 'J') && !(d->at[0] == 'I' && dm_take(d, 'I')))
        return dm_type(d);
    node = dm_new(d, DM_PACK, NULL, NULL);
    if (!node)
        return NULL;
    struct dm_node **end = &node->a;
    return arguments(d, &end) ? node : NULL;
}

/* Arguments that are read may name those before them. */
bool dm_template_args(struct dm *d, bool tag, struct dm_node **args)
{
    *args = NULL;
    if (!dm_take(d, 'I') || d->depth >= DM_MAX_DEPTH)
        return false;
    struct dm_node *before = d->params, **end = args;
    bool good = true;
    d->depth++;
    while (good && !dm_take(d, 'E')) {
        good = dm_append(d, &end, template_arg(d));
        if (tag)
            d->params = *args;
    }
    d->depth--;
    if (!tag)
        d->params = before;
    return good;
}

/* @name<...> */
struct dm_node *dm_with_args(struct dm *d, struct dm_node *name, struct dm_state *state)
{
    struct dm_node *args;
    if (!name || !dm_template_args(d, state != NULL, &args))
        return NULL;
    if (state)
        state->templated = true;
    return dm_new(d, DM_TEMPLATE, name, args);
}

unsigned dm_qualifiers(struct dm *d)
{
    unsigned flags = 0;
    for (;;) {
        if (dm_take(d, 'r'))
            flags |= DM_RESTRICT;
        else if (dm_take(d, 'V'))
            flags |= DM_VOLATILE;
        else if (dm_take(d, 'K'))
            flags |= DM_CONST;
        else
            return flags;
    }
}

/* One more part of a nested name. *@again: it was a substitution. */
static struct dm_node *prefix(struct dm *d, struct dm_node *so_far, struct dm_state *state,
                              bool *again)
{
    *again = false;
    if (state)
        state->templated = *d->at == 'I';
    if (*d->at == 'I')
        return dm_with_args(d, so_far, state);
    if (*d->at == 'T' && !so_far) {
        d->at++;
        return dm_template_param(d);
    }
    if (*d->at == 'D' && (d->at[1] == 't' || d->at[1] == 'T') && !so_far) {
        *again = true; /* types are kept where they are read */
        return dm_type(d);
    }
    if (*d->at == 'S' && !so_far) {
        *again = true;
        if (dm_take2(d, "St"))
            return dm_text(d, DM_NAME, "std", NULL, NULL);
        d->at++;
        return dm_substitution(d);
    }
    return nested(d, so_far, dm_unqualified(d, so_far, state));
}

static struct dm_node *nested_name(struct dm *d, struct dm_state *state)
{
    unsigned flags = dm_qualifiers(d);
    flags |= dm_take(d, 'R') ? DM_LVALUE : dm_take(d, 'O') ? DM_RVALUE : 0;
    if (state)
        state->flags = flags;
    struct dm_node *name = NULL;
    bool again = true;
    while (!dm_take(d, 'E')) {
        dm_take(d, 'M'); /* of a data member's initializer */
        name = prefix(d, name, state, &again);
        if (!name)
            return NULL;
        if (!again)
            dm_keep(d, name);
    }
    if (!again && d->n_subs)
        d->n_subs--; /* the name itself is none; as a type it is kept there */
    return name;
}

static void discriminator(struct dm *d)
{
    const char *at = d->at;
    if (at[0] == '_' && dm_is_digit(at[1])) {
        d->at += 2;
    } else if (at[0] == '_' && at[1] == '_' && dm_is_digit(at[2])) {
        for (at += 2; dm_is_digit(*at); at++)
            ;
        if (*at == '_')
            d->at = at + 1;
    }
}

static struct dm_node *local_name(struct dm *d, struct dm_state *state)
{
    struct dm_node *function = dm_encoding(d), *entity;
    if (!function || !dm_take(d, 'E'))
        return NULL;
    if (function->kind == DM_ENCODING && function->b &&
        function->b->a) { /* what it returns is not said here */
        struct dm_node *type = dm_new(d, DM_FUNCTION, NULL, function->b->b);
        if (type)
            type->flags = function->b->flags;
        function = type ? dm_new(d, DM_ENCODING, function->a, type) : NULL;
    }
    if (dm_take(d, 's')) {
        discriminator(d);
        return nested(d, function, dm_text(d, DM_NAME, "string literal", NULL, NULL));
    }
    if (dm_take(d, 'd')) {
        uint32_t n;
        struct dm_node *number =
            sequence(d, 10, &n) ? dm_text(d, DM_WRAPPED, "{default arg#", NULL, NULL) : NULL;
        if (!number)
            return NULL;
        number->flags = n + 1;
        number->text2 = "}";
        function = nested(d, function, number);
    }
    entity = dm_name(d, state);
    discriminator(d);
    return function ? nested(d, function, entity) : NULL;
}

struct dm_node *dm_name(struct dm *d, struct dm_state *state)
{
    struct dm_node *name;
    if (dm_take(d, 'N'))
        return nested_name(d, state);
    if (dm_take(d, 'Z'))
        return local_name(d, state);
    if (d->at[0] == 'S' && d->at[1] != 't') {
        d->at++;
        name = dm_substitution(d);
        return name && *d->at == 'I' ? dm_with_args(d, name, state) : name;
    }
    struct dm_node *std = dm_take2(d, "St") ? dm_text(d, DM_NAME, "std", NULL, NULL) : NULL;
    name = nested(d, std, dm_unqualified(d, NULL, state));
    return name && *d->at == 'I' ? dm_with_args(d, dm_keep(d, name), state) : name;
}

/* ------------------------------------------------------------------------- all of it */

static struct dm_node *special(struct dm *d)
{
    static const struct {
        const char *code, *text;
        bool of_type;
    } all[] = {
        { "TV", "vtable for ", true },
        { "TT", "VTT for ", true },
        { "TI", "typeinfo for ", true },
        { "TS", "typeinfo name for ", true },
        { "GV", "guard variable for ", false },
        { "TW", "TLS wrapper function for ", false },
        { "TH", "TLS init function for ", false },
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (dm_take2(d, all[i].code)) {
            struct dm_node *of = all[i].of_type ? dm_type(d) : dm_name(d, NULL);
            return of ? dm_text(d, DM_WRAPPED, all[i].text, of, NULL) : NULL;
        }
    return NULL;
}

static struct dm_node *function_of(struct dm *d, struct dm_node *name, const struct dm_state *state)
{
    struct dm_node *returns = NULL;
    if (state->templated && !state->no_return && !(returns = dm_type(d)))
        return NULL;
    struct dm_node *params = dm_parameters(d, "E._");
    struct dm_node *type = params ? dm_new(d, DM_FUNCTION, returns, params) : NULL;
    if (!type)
        return NULL;
    type->flags = state->flags;
    return dm_new(d, DM_ENCODING, name, type);
}

struct dm_node *dm_encoding(struct dm *d)
{
    struct dm_state state = { 0 };
    struct dm_node *before = d->params, *node;
    if (d->depth >= DM_MAX_DEPTH)
        return NULL;
    d->depth++;
    if (*d->at == 'T' || (d->at[0] == 'G' && d->at[1] == 'V')) {
        node = special(d);
    } else {
        node = dm_name(d, &state);
        if (node && *d->at && *d->at != 'E' && *d->at != '.')
            node = function_of(d, node, &state);
    }
    d->depth--;
    d->params = before;
    return node;
}

/* ".constprop.0" and the like, which compilers append. */
static struct dm_node *with_suffixes(struct dm *d, struct dm_node *node)
{
    while (node && dm_take(d, '.')) {
        const char *from = d->at - 1;
        while (*d->at && (*d->at != '.' || dm_is_digit(d->at[1])))
            d->at++;
        struct dm_node *suffix = dm_around(d, DM_SUFFIXED, node);
        if (!suffix)
            return NULL;
        suffix->text = from;
        suffix->n = (uint32_t)(d->at - from);
        suffix->flags = 2; /* in [clone ] */
        node = suffix;
    }
    return *d->at ? NULL : node;
}

char *demangle(const char *name)
{
    if (!demangle_is_for(name))
        return NULL;
    size_t n = strlen(name);
    struct dm d = { .at = name + 2, .max_nodes = 4 * n + 64 };
    d.nodes = calloc(d.max_nodes, sizeof *d.nodes);
    d.subs = calloc(d.max_nodes, sizeof *d.subs);
    struct dm_node *tree = d.nodes && d.subs ? with_suffixes(&d, dm_encoding(&d)) : NULL;
    char *text = tree ? dm_print(tree) : NULL;
    free(d.nodes);
    free(d.subs);
    return text;
}
