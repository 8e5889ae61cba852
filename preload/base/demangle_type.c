/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/base/demangle_ast.h"

#include <string.h>

static const struct {
    char code[4];
    const char *text, *ending;
} builtins[] = {
    { "v", "void", NULL },
    { "w", "wchar_t", NULL },
    { "b", "bool", "b" },
    { "c", "char", NULL },
    { "a", "signed char", NULL },
    { "h", "unsigned char", NULL },
    { "s", "short", NULL },
    { "t", "unsigned short", NULL },
    { "i", "int", "" },
    { "j", "unsigned int", "u" },
    { "l", "long", "l" },
    { "m", "unsigned long", "ul" },
    { "x", "long long", "ll" },
    { "y", "unsigned long long", "ull" },
    { "n", "__int128", NULL },
    { "o", "unsigned __int128", NULL },
    { "f", "float", "f" },
    { "d", "double", "f" },
    { "e", "long double", "f" },
    { "g", "__float128", "f" },
    { "z", "...", NULL },
    { "Da", "auto", NULL },
    { "Dc", "decltype(auto)", NULL },
    { "Dn", "decltype(nullptr)", NULL },
    { "Dd", "decimal64", NULL },
    { "De", "decimal128", NULL },
    { "Df", "decimal32", NULL },
    { "Dh", "half", "f" },
    { "Di", "char32_t", NULL },
    { "Ds", "char16_t", NULL },
    { "Du", "char8_t", NULL },
};

static struct dm_node *builtin(struct dm *d)
{
    for (size_t i = 0; i < sizeof builtins / sizeof *builtins; i++) {
        size_t n = strlen(builtins[i].code);
        if (strncmp(d->at, builtins[i].code, n))
            continue;
        d->at += n;
        struct dm_node *node = dm_text(d, DM_BUILTIN, builtins[i].text, NULL, NULL);
        if (node)
            node->text2 = builtins[i].ending;
        return node;
    }
    return NULL;
}

/* DF16_, DF16b, DF64x: floats of so many bits. */
static struct dm_node *sized_float(struct dm *d)
{
    static const struct {
        const char *code, *text;
    } all[] = { { "16_", "_Float16" }, { "16b", "std::bfloat16_t" }, { "32_", "_Float32" },
                { "64_", "_Float64" }, { "128_", "_Float128" },      { "32x", "_Float32x" },
                { "64x", "_Float64x" } };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!strncmp(d->at, all[i].code, strlen(all[i].code))) {
            d->at += strlen(all[i].code);
            return dm_text(d, DM_BUILTIN, all[i].text, NULL, NULL);
        }
    return NULL;
}

/* After the F. */
static struct dm_node *function_type(struct dm *d, unsigned flags)
{
    dm_take(d, 'Y');
    struct dm_node *returns = dm_type(d), *params = returns ? dm_parameters(d, "E") : NULL;
    if (params && dm_ends_with_reference(d))
        flags |= *d->at++ == 'R' ? DM_LVALUE : DM_RVALUE;
    struct dm_node *node =
        params && dm_take(d, 'E') ? dm_new(d, DM_FUNCTION, returns, params) : NULL;
    if (node)
        node->flags = flags;
    return node;
}

static struct dm_node *array_type(struct dm *d)
{
    struct dm_node *size = NULL;
    if (dm_is_digit(*d->at)) {
        size = dm_new(d, DM_NAME, NULL, NULL);
        if (!size)
            return NULL;
        for (size->text = d->at; dm_is_digit(*d->at); d->at++)
            size->n++;
    } else if (*d->at != '_' && !(size = dm_expression(d))) {
        return NULL;
    }
    struct dm_node *node = dm_take(d, '_') ? dm_around(d, DM_ARRAY, dm_type(d)) : NULL;
    if (node)
        node->b = size;
    return node;
}

static struct dm_node *vector_type(struct dm *d)
{
    struct dm_node *array = dm_take(d, '_') ? NULL : array_type(d);
    if (array)
        array->kind = DM_VECTOR;
    return array;
}

/* After the D; what is no builtin. */
static struct dm_node *d_type(struct dm *d)
{
    switch (*d->at++) {
    case 'p': return dm_around(d, DM_EXPANSION, dm_type(d));
    case 'v': return vector_type(d);
    case 't':
    case 'T': {
        struct dm_node *e = dm_expression(d);
        struct dm_node *node =
            e && dm_take(d, 'E') ? dm_text(d, DM_WRAPPED, "decltype (", e, NULL) : NULL;
        if (node)
            node->text2 = ")";
        return node;
    }
    case 'o': return dm_take(d, 'F') ? function_type(d, DM_NOEXCEPT) : NULL;
    default: return NULL;
    }
}

static struct dm_node *qualified(struct dm *d)
{
    unsigned flags = dm_qualifiers(d);
    if (dm_take(d, 'F'))
        return function_type(d, flags); /* of a member function: they come last */
    struct dm_node *node = dm_around(d, DM_QUALIFIED, dm_type(d));
    if (node)
        node->flags = flags;
    return node;
}

static struct dm_node *vendor_qualified(struct dm *d)
{
    struct dm_node *name = dm_source_name(d), *type = name ? dm_type(d) : NULL;
    struct dm_node *node = type ? dm_new(d, DM_SUFFIXED, type, NULL) : NULL;
    if (node) {
        node->text = name->text;
        node->n = name->n;
        node->flags = 1; /* after a space */
    }
    return node;
}

static struct dm_node *suffixed(struct dm *d, const char *text)
{
    struct dm_node *type = dm_type(d);
    return type ? dm_text(d, DM_SUFFIXED, text, type, NULL) : NULL;
}

static struct dm_node *member_type(struct dm *d)
{
    struct dm_node *class = dm_type(d), *member = class ? dm_type(d) : NULL;
    return member ? dm_new(d, DM_MEMBER, class, member) : NULL;
}

/* A class by its name; types that are named by T, S too. *@again: it is kept already, or is never. */
static struct dm_node *named_type(struct dm *d, bool *again)
{
    struct dm_node *node;
    if (dm_take(d, 'T')) {
        if (*d->at == 's' || *d->at == 'u' || *d->at == 'e') {
            d->at++;
            return dm_name(d, NULL);
        }
        node = dm_template_param(d);
        return node && *d->at == 'I' ? dm_with_args(d, dm_keep(d, node), NULL) : node;
    }
    if (d->at[0] == 'S' && d->at[1] != 't') {
        d->at++;
        node = dm_substitution(d);
        *again = *d->at != 'I';
        return node && !*again ? dm_with_args(d, node, NULL) : node;
    }
    return dm_name(d, NULL);
}

static struct dm_node *compound_type(struct dm *d, bool *again)
{
    struct dm_node *node = builtin(d);
    *again = node != NULL;
    if (node)
        return node;
    switch (*d->at) {
    case 'r':
    case 'V':
    case 'K': return qualified(d);
    case 'P': d->at++; return dm_around(d, DM_POINTER, dm_type(d));
    case 'R': d->at++; return dm_around(d, DM_LREF, dm_type(d));
    case 'O': d->at++; return dm_around(d, DM_RREF, dm_type(d));
    case 'C': d->at++; return suffixed(d, " _Complex");
    case 'G': d->at++; return suffixed(d, " _Imaginary");
    case 'F': d->at++; return function_type(d, 0);
    case 'A': d->at++; return array_type(d);
    case 'M': d->at++; return member_type(d);
    case 'U':
        if (!dm_is_digit(d->at[1]))
            return dm_name(d, NULL);
        d->at++;
        return vendor_qualified(d);
    case 'u': d->at++; return dm_source_name(d);
    case 'D':
        d->at++;
        if (*d->at != 'F')
            return d_type(d);
        d->at++;
        *again = true;
        return sized_float(d);
    default: return named_type(d, again);
    }
}

struct dm_node *dm_type(struct dm *d)
{
    bool again = false;
    if (d->depth >= DM_MAX_DEPTH)
        return NULL;
    d->depth++;
    struct dm_node *node = compound_type(d, &again);
    d->depth--;
    return again ? node : dm_keep(d, node);
}
