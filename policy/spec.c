/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a tree of YAML nodes to a struct spec. Each take_*() reads one kind of value and, where it
 * finds something else, reports it and goes on, so that one run shows all errors.
 * Source: docs/hookspec.md.
 */
#include "policy/spec.h"

#include "core/cleanup.h"
#include "policy/nearest.h"
#include "policy/pattern.h"
#include "policy/report.h"
#include "policy/tree.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME_MAX_BYTES  128
#define TEXT_MAX_BYTES  4096
#define PAIRS_MAX       64
#define OCCURRENCE_MAX  0xfffffffeu
#define LAYERS_CHECKED  4096  /* occurrences whose layers are computed beforehand */
#define CROWD_MAX_WORK  65536 /* searches that check_crowd() may do */
#define DEFAULT_WAIT_MS 100
#define MAX_WAIT_MS     60000

/* Instead of a pattern's index, in of_kind: */
#define NO_PATTERN       UINT16_MAX
#define BEGINS_WITH_STEP (UINT16_MAX - 1)

/* Patterns that several sites share are compiled and matched once. */
struct regexes {
    struct pattern *patterns;
    size_t n;
    uint16_t of_site[SPEC_MAX_SITES];
    uint16_t of_kind[SPEC_MAX_KINDS];
};

struct loader {
    struct spec *spec;
    struct report report;
    struct expr_var vars[SPEC_MAX_VARS];
    size_t n_vars;
    size_t pattern_room;
    bool no_memory;
};

struct key {
    const char *name;
    bool required;
};

#define KEYS_MAX    16
#define N_OF(array) (sizeof(array) / sizeof *(array))

static void complain(struct loader *l, const struct tree_node *node, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static void complain(struct loader *l, const struct tree_node *node, const char *fmt, ...)
{
    char what[900];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    report_add(&l->report, node->line, node->column, "%s", what);
}

/* As complain(), about the byte @offset of a scalar. */
static void complain_inside(struct loader *l, const struct tree_node *node, size_t offset,
                            const char *what)
{
    uint32_t column = node->column, n_before = 0;
    char place[48] = "";
    for (size_t i = 0; i < offset && i < node->n_text; i++)
        n_before += ((unsigned char)node->text[i] & 0xc0) != 0x80; /* characters, not bytes */
    if (node->text_column)
        column = node->text_column + n_before;
    else
        snprintf(place, sizeof place, "at character %u of the text: ", n_before + 1);
    report_add(&l->report, node->line, column, "%s%s", place, what);
}

static char *copy(struct loader *l, const char *text)
{
    char *p = strdup(text);
    if (!p)
        l->no_memory = true;
    return p;
}

static bool is_nothing(const struct tree_node *node)
{
    return node->kind == TREE_SCALAR && node->plain &&
           (!node->n_text || !strcmp(node->text, "~") || !strcmp(node->text, "null"));
}

/* What a node is, in words. */
static const char *found(const struct tree_node *node, char *buffer, size_t n)
{
    if (node->kind == TREE_LIST)
        snprintf(buffer, n, "a list");
    else if (node->kind == TREE_MAP)
        snprintf(buffer, n, "a mapping");
    else if (is_nothing(node))
        snprintf(buffer, n, "nothing");
    else
        report_quote(node->text, node->n_text, buffer, n);
    return buffer;
}

/* Return: true if @node is a text that is not empty; reports otherwise. */
static bool is_text(struct loader *l, const struct tree_node *node, const char *what)
{
    char was[128];
    if (node->kind == TREE_SCALAR && !is_nothing(node) && node->n_text)
        return true;
    complain(l, node, "found %s; expected %s", found(node, was, sizeof was), what);
    return false;
}

/* "name, kernel, pointer" */
static void join_names(const char *const *names, size_t n, char *buffer, size_t n_buffer)
{
    size_t used = 0;
    buffer[0] = 0;
    for (size_t i = 0; i < n && used < n_buffer; i++)
        used += (size_t)snprintf(buffer + used, n_buffer - used, "%s%s", i ? ", " : "", names[i]);
}

/* ----------------------------------------------------------------------------------------- maps */

/* Return: the key that was probably meant, or -1. */
static int unknown_key(struct loader *l, const struct tree_node *key, const char *what,
                       const struct key *keys, size_t n_keys)
{
    if (l->report.n_lines >= REPORT_MAX) {
        l->report.n_more++;
        return -1;
    }
    const char *names[KEYS_MAX];
    for (size_t i = 0; i < n_keys; i++)
        names[i] = keys[i].name;
    char was[128], all[256], hint[64];
    join_names(names, n_keys, all, sizeof all);
    nearest_hint(key->text, key->n_text, names, n_keys, hint, sizeof hint);
    complain(l, key, "found the unknown key %s in %s; expected %s%s",
             report_quote(key->text, key->n_text, was, sizeof was), what, all, hint);
    return nearest_word(key->text, key->n_text, names, n_keys);
}

/**
 * take_map() - the values of a mapping whose keys are known
 * @what: "a site", for messages; @values: one for each of @keys, NULL where the key is missing
 * Return: false if @node is no mapping (reported).
 */
static bool take_map(struct loader *l, const struct tree_node *node, const char *what,
                     const struct key *keys, size_t n_keys, const struct tree_node **values)
{
    const struct tree_node *seen[KEYS_MAX] = { NULL };
    bool misspelt[KEYS_MAX] = { false }; /* told once, so not missed as well */
    char was[128];
    memset(values, 0, n_keys * sizeof *values);
    if (node->kind != TREE_MAP) {
        const char *names[KEYS_MAX];
        char all[256];
        for (size_t i = 0; i < n_keys; i++)
            names[i] = keys[i].name;
        join_names(names, n_keys, all, sizeof all);
        complain(l, node, "found %s; expected %s: a mapping with the keys %s",
                 found(node, was, sizeof was), what, all);
        return false;
    }
    for (size_t i = 0; i < node->n_items; i += 2) {
        const struct tree_node *key = node->items[i];
        if (key->kind != TREE_SCALAR) {
            complain(l, key, "found %s as a key of %s; expected a word",
                     found(key, was, sizeof was), what);
            continue;
        }
        size_t k = 0;
        while (k < n_keys && strcmp(keys[k].name, key->text))
            k++;
        if (k == n_keys) {
            int meant = unknown_key(l, key, what, keys, n_keys);
            if (meant >= 0)
                misspelt[meant] = true;
        } else if (seen[k]) {
            complain(l, key,
                     "found the key \"%s\" a second time in %s; expected it once (first at "
                     "%u:%u)",
                     keys[k].name, what, seen[k]->line, seen[k]->column);
        } else {
            seen[k] = key;
            values[k] = node->items[i + 1];
        }
    }
    for (size_t k = 0; k < n_keys; k++)
        if (keys[k].required && !seen[k] && !misspelt[k])
            complain(l, node, "found no \"%s\" in %s; expected \"%s: ...\"", keys[k].name, what,
                     keys[k].name);
    return true;
}

static bool take_list(struct loader *l, const struct tree_node *node, const char *what, size_t max)
{
    char was[128];
    if (node->kind != TREE_LIST)
        complain(l, node, "found %s; expected %s", found(node, was, sizeof was), what);
    else if (node->n_items > max)
        complain(l, node, "found %zu entries; expected at most %zu", node->n_items, max);
    else
        return true;
    return false;
}

/* -------------------------------------------------------------------------------------- scalars */

/* An integer in decimal or 0x form, to the end of the text. */
static bool parse_integer(const char *text, int64_t *out)
{
    bool negative = *text == '-';
    const char *p = text + (*text == '-' || *text == '+');
    int base = 10;
    if (p[0] == '0' && (p[1] == 'x' || p[1] == 'X')) {
        base = 16;
        p += 2;
    }
    if (!*p)
        return false;
    int64_t v = 0;
    for (; *p; p++) {
        int digit = *p >= '0' && *p <= '9'                 ? *p - '0'
                    : base == 16 && *p >= 'a' && *p <= 'f' ? *p - 'a' + 10
                    : base == 16 && *p >= 'A' && *p <= 'F' ? *p - 'A' + 10
                                                           : -1;
        if (digit < 0 || __builtin_mul_overflow(v, (int64_t)base, &v) ||
            (negative ? __builtin_sub_overflow(v, (int64_t)digit, &v)
                      : __builtin_add_overflow(v, (int64_t)digit, &v)))
            return false;
    }
    *out = v;
    return true;
}

static bool take_integer(struct loader *l, const struct tree_node *node, int64_t min, int64_t max,
                         int64_t *out)
{
    char was[128];
    int64_t v;
    if (node->kind == TREE_SCALAR && parse_integer(node->text, &v) && v >= min && v <= max) {
        *out = v;
        return true;
    }
    if (min == INT64_MIN && max == INT64_MAX)
        complain(l, node, "found %s; expected an integer of 64 bits, decimal or 0x...",
                 found(node, was, sizeof was));
    else
        complain(l, node, "found %s; expected an integer from %lld to %lld",
                 found(node, was, sizeof was), (long long)min, (long long)max);
    return false;
}

/* Bytes or a count, with K, M or G behind it. */
static bool take_size(struct loader *l, const struct tree_node *node, uint64_t min, uint64_t max,
                      uint64_t *out)
{
    char was[128], number[32];
    int64_t v;
    unsigned shift = 0;
    if (node->kind == TREE_SCALAR && node->n_text && node->n_text < sizeof number) {
        memcpy(number, node->text, node->n_text + 1);
        char *last = &number[node->n_text - 1];
        shift = *last == 'K' ? 10 : *last == 'M' ? 20 : *last == 'G' ? 30 : 0;
        if (shift)
            *last = 0;
        if (number[0] != '-' && parse_integer(number, &v) && v <= INT64_MAX >> shift &&
            (uint64_t)v << shift >= min && (uint64_t)v << shift <= max) {
            *out = (uint64_t)v << shift;
            return true;
        }
    }
    complain(l, node,
             "found %s; expected a number from %llu to %llu, K, M or G (1024, 1024^2, "
             "1024^3) may stand behind it",
             found(node, was, sizeof was), (unsigned long long)min, (unsigned long long)max);
    return false;
}

static bool take_bool(struct loader *l, const struct tree_node *node, bool *out)
{
    char was[128];
    bool yes = node->kind == TREE_SCALAR && !strcmp(node->text, "true");
    if (yes || (node->kind == TREE_SCALAR && !strcmp(node->text, "false"))) {
        *out = yes;
        return true;
    }
    complain(l, node, "found %s; expected true or false", found(node, was, sizeof was));
    return false;
}

/* One of a few words. Return: its index, or -1 (reported). */
static int take_word(struct loader *l, const struct tree_node *node, const char *const *words,
                     size_t n)
{
    char was[128], all[256], hint[64] = "";
    if (node->kind == TREE_SCALAR) {
        for (size_t i = 0; i < n; i++)
            if (!strcmp(node->text, words[i]))
                return (int)i;
        nearest_hint(node->text, node->n_text, words, n, hint, sizeof hint);
    }
    join_names(words, n, all, sizeof all);
    complain(l, node, "found %s; expected one of %s%s", found(node, was, sizeof was), all, hint);
    return -1;
}

static void take_text(struct loader *l, const struct tree_node *node, char **out)
{
    if (!is_text(l, node, "a text"))
        return;
    if (node->n_text > TEXT_MAX_BYTES)
        complain(l, node, "found %zu bytes; expected at most %d", node->n_text, TEXT_MAX_BYTES);
    else
        *out = copy(l, node->text);
}

static bool is_name_character(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
}

/* A name that keys and files can be made of; @layers: "{layer}" may stand in it, once. */
static bool take_name(struct loader *l, const struct tree_node *node, bool layers, char **out)
{
    if (!is_text(l, node, "a name"))
        return false;
    if (node->n_text > NAME_MAX_BYTES) {
        complain(l, node, "found a name of %zu bytes; expected at most %d", node->n_text,
                 NAME_MAX_BYTES);
        return false;
    }
    bool had_layer = false;
    for (const char *p = node->text; *p; p++) {
        if (layers && !had_layer && !strncmp(p, "{layer}", 7)) {
            had_layer = true;
            p += 6;
        } else if (!is_name_character(*p)) {
            char what[160], bad[16];
            snprintf(bad, sizeof bad, *p >= ' ' && *p < 127 ? "'%c'" : "byte 0x%02x",
                     (unsigned char)*p);
            snprintf(what, sizeof what, "found %s in a name; expected letters, digits, _ - .%s",
                     bad, layers ? " or \"{layer}\", once" : "");
            complain_inside(l, node, (size_t)(p - node->text), what);
            return false;
        }
    }
    *out = copy(l, node->text);
    return *out != NULL;
}

static bool take_scale(struct loader *l, const struct tree_node *node, double *out)
{
    char was[128];
    if (node->kind == TREE_SCALAR && node->n_text) {
        /* the host may have set a locale with a decimal comma */
        locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
        if (!c) {
            l->no_memory = true;
            return false;
        }
        char *end;
        double v = strtod_l(node->text, &end, c);
        freelocale(c);
        if (!*end && isfinite(v) && v != 0 &&
            strspn(node->text, "+-0123456789.eE") == node->n_text) {
            *out = v;
            return true;
        }
    }
    complain(l, node, "found %s; expected a decimal number that is finite and not 0",
             found(node, was, sizeof was));
    return false;
}

static bool take_dtype(struct loader *l, const struct tree_node *node, uint32_t *out)
{
    static const struct {
        const char *other;
        uint32_t dtype;
    } spellings[] = {
        { "float", DMI_DTYPE_F32 },      { "float32", DMI_DTYPE_F32 },
        { "fp32", DMI_DTYPE_F32 },       { "half", DMI_DTYPE_F16 },
        { "float16", DMI_DTYPE_F16 },    { "fp16", DMI_DTYPE_F16 },
        { "bfloat16", DMI_DTYPE_BF16 },  { "float64", DMI_DTYPE_F64 },
        { "double", DMI_DTYPE_F64 },     { "fp64", DMI_DTYPE_F64 },
        { "int8", DMI_DTYPE_I8 },        { "int16", DMI_DTYPE_I16 },
        { "int", DMI_DTYPE_I32 },        { "int32", DMI_DTYPE_I32 },
        { "long", DMI_DTYPE_I64 },       { "int64", DMI_DTYPE_I64 },
        { "uint8", DMI_DTYPE_U8 },       { "uint16", DMI_DTYPE_U16 },
        { "uint32", DMI_DTYPE_U32 },     { "uint64", DMI_DTYPE_U64 },
        { "boolean", DMI_DTYPE_BOOL },   { "float8_e4m3fn", DMI_DTYPE_F8E4M3 },
        { "fp8", DMI_DTYPE_F8E4M3 },     { "f8_e4m3", DMI_DTYPE_F8E4M3 },
        { "f8_e5m2", DMI_DTYPE_F8E5M2 }, { "float8_e5m2", DMI_DTYPE_F8E5M2 },
    };
    const char *names[DMI_DTYPE_COUNT];
    size_t n = 0;
    for (uint32_t d = 1; d < DMI_DTYPE_COUNT; d++)
        names[n++] = dmi_dtype_info(d)->name;
    for (size_t i = 0; node->kind == TREE_SCALAR && i < N_OF(spellings); i++)
        if (!strcasecmp(spellings[i].other, node->text)) {
            char all[256];
            join_names(names, n, all, sizeof all);
            complain(l, node, "found \"%s\"; expected one of %s; did you mean \"%s\"?", node->text,
                     all, dmi_dtype_info(spellings[i].dtype)->name);
            return false;
        }
    int i = take_word(l, node, names, n);
    *out = (uint32_t)(i + 1);
    return i >= 0;
}

static struct expr *take_expr(struct loader *l, const struct tree_node *node)
{
    struct expr *e = NULL;
    struct expr_error error;
    if (!is_text(l, node, "an expression"))
        return NULL;
    int rc = expr_parse(node->text, node->n_text, l->vars, l->n_vars, &error, &e);
    if (rc == EXPR_E_SYNTAX)
        complain_inside(l, node, error.offset, error.msg);
    else if (rc)
        l->no_memory = true;
    return e;
}

static void take_pointer(struct loader *l, const struct tree_node *node, struct expr_ref *out)
{
    struct expr_error error;
    if (!is_text(l, node, "arg[INDEX], arg[INDEX][OFFSET] or param[OFFSET]"))
        return;
    int rc = expr_parse_ref(node->text, node->n_text, l->vars, l->n_vars, &error, out);
    if (rc == EXPR_E_SYNTAX)
        complain_inside(l, node, error.offset, error.msg);
    else if (rc)
        l->no_memory = true;
}

/* Compiles the pattern, or finds it compiled; *@index is its place in regexes. */
static bool take_pattern(struct loader *l, const struct tree_node *node, char **text,
                         uint16_t *index)
{
    struct regexes *all = l->spec->regexes;
    if (!is_text(l, node, "a POSIX extended regular expression on the kernel's name"))
        return false;
    size_t i = 0;
    while (i < all->n && strcmp(all->patterns[i].text, node->text))
        i++;
    if (i == all->n) {
        struct pattern_error error;
        int rc = pattern_compile(node->text, &l->pattern_room, &all->patterns[i], &error);
        if (rc == PATTERN_E_INVALID)
            complain_inside(l, node, error.offset, error.msg);
        else if (rc)
            l->no_memory = true;
        if (rc)
            return false;
        all->n++;
    }
    *index = (uint16_t)i;
    *text = copy(l, node->text);
    return *text != NULL;
}

/* ------------------------------------------------------------------------------------- sections */

static void take_convention(struct loader *l, const struct tree_node *node)
{
    struct spec *spec = l->spec;
    char was[128];
    if (node->kind != TREE_MAP) {
        complain(l, node, "found %s; expected a mapping of words to texts, as {layer_base: 0}",
                 found(node, was, sizeof was));
        return;
    }
    if (node->n_items / 2 > PAIRS_MAX) {
        complain(l, node, "found %zu entries; expected at most %d", node->n_items / 2, PAIRS_MAX);
        return;
    }
    spec->conventions = calloc(node->n_items / 2 + 1, sizeof *spec->conventions);
    if (!spec->conventions) {
        l->no_memory = true;
        return;
    }
    for (size_t i = 0; i < node->n_items; i += 2) {
        const struct tree_node *key = node->items[i], *value = node->items[i + 1];
        int64_t base;
        struct spec_pair *pair = &spec->conventions[spec->n_conventions++];
        if (!take_name(l, key, false, &pair->key))
            continue;
        for (size_t k = 0; k + 1 < spec->n_conventions; k++)
            if (spec->conventions[k].key && !strcmp(spec->conventions[k].key, pair->key))
                complain(l, key, "found the key \"%s\" a second time; expected it once", pair->key);
        if (!strcmp(pair->key, "layer_base") && !take_integer(l, value, 0, 1000000, &base))
            continue;
        take_text(l, value, &pair->value);
    }
}

static bool is_reserved(const char *name)
{
    static const char *const words[] = { "grid",  "block", "shared", "occ",     "arg",
                                         "param", "min",   "max",    "ceil_div" };
    for (size_t i = 0; i < N_OF(words); i++)
        if (!strcmp(words[i], name))
            return true;
    return false;
}

static void take_var(struct loader *l, const struct tree_node *key, const struct tree_node *value)
{
    char was[128];
    bool good = key->kind == TREE_SCALAR && key->n_text && key->n_text <= NAME_MAX_BYTES &&
                !(key->text[0] >= '0' && key->text[0] <= '9');
    for (size_t i = 0; good && i < key->n_text; i++)
        good = is_name_character(key->text[i]) && key->text[i] != '-' && key->text[i] != '.';
    if (!good) {
        complain(l, key,
                 "found %s as a variable's name; expected letters, digits and _, no digit "
                 "first",
                 found(key, was, sizeof was));
        return;
    }
    if (is_reserved(key->text)) {
        complain(l, key,
                 "found the variable \"%s\"; expected another name: it means something in "
                 "expressions",
                 key->text);
        return;
    }
    for (size_t i = 0; i < l->n_vars; i++)
        if (!strcmp(l->vars[i].name, key->text)) {
            complain(l, key, "found the variable \"%s\" a second time; expected it once",
                     key->text);
            return;
        }
    /* declared even if its value is wrong, so that its uses are no errors of their own */
    l->vars[l->n_vars] = (struct expr_var){ .name = key->text, .value = 1 };
    take_integer(l, value, INT64_MIN, INT64_MAX, &l->vars[l->n_vars].value);
    l->n_vars++;
}

static void take_vars(struct loader *l, const struct tree_node *node)
{
    char was[128];
    if (node->kind != TREE_MAP) {
        complain(l, node,
                 "found %s; expected a mapping of names to integers, as {max_context: 512}",
                 found(node, was, sizeof was));
        return;
    }
    if (node->n_items / 2 > SPEC_MAX_VARS) {
        complain(l, node, "found %zu variables; expected at most %d", node->n_items / 2,
                 SPEC_MAX_VARS);
        return;
    }
    for (size_t i = 0; i < node->n_items; i += 2)
        take_var(l, node->items[i], node->items[i + 1]);
}

static void override_var(struct loader *l, const char *assignment)
{
    char was[128], all[256], hint[64];
    const char *equals = strchr(assignment, '=');
    size_t n = equals ? (size_t)(equals - assignment) : strlen(assignment);
    report_quote(assignment, strlen(assignment), was, sizeof was);
    size_t i = 0;
    while (i < l->n_vars &&
           (strlen(l->vars[i].name) != n || memcmp(l->vars[i].name, assignment, n)))
        i++;
    if (!equals || !n) {
        report_add(&l->report, 0, 0,
                   "found %s among the variables that are set from outside "
                   "(-D, DMI_VARS); expected NAME=INTEGER",
                   was);
    } else if (i == l->n_vars) {
        const char *names[SPEC_MAX_VARS];
        for (size_t k = 0; k < l->n_vars; k++)
            names[k] = l->vars[k].name;
        join_names(names, l->n_vars, all, sizeof all);
        nearest_hint(assignment, n, names, l->n_vars, hint, sizeof hint);
        report_add(&l->report, 0, 0,
                   "found %s, set from outside (-D, DMI_VARS), of which vars: says "
                   "nothing; expected %s%s",
                   was, l->n_vars ? all : "no variables: the spec declares none", hint);
    } else if (!parse_integer(equals + 1, &l->vars[i].value)) {
        report_add(&l->report, 0, 0,
                   "found %s, set from outside (-D, DMI_VARS); expected an integer "
                   "of 64 bits, decimal or 0x..., behind \"=\"",
                   was);
    }
}

static void keep_vars(struct loader *l)
{
    struct spec *spec = l->spec;
    spec->vars = calloc(l->n_vars + 1, sizeof *spec->vars);
    if (!spec->vars) {
        l->no_memory = true;
        return;
    }
    for (size_t i = 0; i < l->n_vars; i++) {
        char value[32];
        snprintf(value, sizeof value, "%lld", (long long)l->vars[i].value);
        spec->vars[i] = (struct spec_pair){ copy(l, l->vars[i].name), copy(l, value) };
        spec->n_vars++;
    }
}

static void take_ring(struct loader *l, const struct tree_node *node)
{
    static const struct key keys[] = { { "bytes", false }, { "slots", false } };
    const struct tree_node *v[N_OF(keys)];
    char was[128];
    if (!take_map(l, node, "ring", keys, N_OF(keys), v))
        return;
    uint64_t n;
    if (v[0] && take_size(l, v[0], 4096, (uint64_t)1 << 40, &n)) {
        if (n % 16)
            complain(l, v[0], "found %s; expected a multiple of 16", found(v[0], was, sizeof was));
        l->spec->ring_bytes = n;
    }
    if (v[1] && take_size(l, v[1], 2, 1 << 24, &n)) {
        if (n & (n - 1))
            complain(l, v[1], "found %s; expected a power of two", found(v[1], was, sizeof was));
        l->spec->ring_slots = (uint32_t)n;
    }
}

static void take_overload(struct loader *l, const struct tree_node *node)
{
    static const struct key keys[] = { { "mode", true }, { "wait_ms", false } };
    static const char *const modes[] = {
        [SPEC_OVERLOAD_DROP] = "drop", [SPEC_OVERLOAD_COMPLETE] = "complete"
    };
    const struct tree_node *v[N_OF(keys)];
    if (!take_map(l, node, "overload", keys, N_OF(keys), v))
        return;
    int64_t ms;
    int mode = v[0] ? take_word(l, v[0], modes, N_OF(modes)) : -1;
    if (mode >= 0)
        l->spec->overload = (enum spec_overload)mode;
    if (v[1] && take_integer(l, v[1], 0, MAX_WAIT_MS, &ms))
        l->spec->overload_wait_ns = (uint64_t)ms * 1000000;
}

/* Index of the kind that @node names, -1 where @node is NULL; false if there is none (reported). */
static bool take_kind_name(struct loader *l, const struct tree_node *node, int *out)
{
    struct spec *spec = l->spec;
    const char *names[SPEC_MAX_KINDS];
    *out = -1;
    if (!node)
        return true;
    size_t n = 0;
    for (uint32_t i = 0; i < spec->n_kinds; i++)
        if (spec->kinds[i].name)
            names[n++] = spec->kinds[i].name;
    char was[128];
    if (!n && spec->n_kinds == 0) {
        complain(l, node, "found %s, but no forward: section; expected one that declares it",
                 found(node, was, sizeof was));
        return false;
    }
    if (!n || take_word(l, node, names, n) < 0)
        return false; /* where no kind has a name that was reported already */
    for (uint32_t i = 0; i < spec->n_kinds; i++)
        if (spec->kinds[i].name && !strcmp(spec->kinds[i].name, node->text))
            *out = (int)i;
    return true;
}

static void take_begin(struct loader *l, const struct tree_node *node, uint32_t index)
{
    static const struct key keys[] = { { "kernel", true } };
    struct spec *spec = l->spec;
    struct regexes *all = spec->regexes;
    const struct tree_node *v[N_OF(keys)];
    if (node->kind == TREE_SCALAR && !strcmp(node->text, "step")) {
        for (uint32_t i = 0; i < index; i++)
            if (all->of_kind[i] == BEGINS_WITH_STEP)
                complain(l, node,
                         "found a second forward that begins with a step; expected one: "
                         "dmi_step_begin() cannot tell them apart");
        all->of_kind[index] = BEGINS_WITH_STEP;
        return;
    }
    if (node->kind == TREE_SCALAR) {
        char was[128];
        complain(l, node, "found %s; expected step or {kernel: PATTERN}",
                 found(node, was, sizeof was));
        return;
    }
    if (!take_map(l, node, "begin", keys, N_OF(keys), v) || !v[0] ||
        !take_pattern(l, v[0], &spec->kinds[index].kernel, &all->of_kind[index]))
        return;
    for (uint32_t i = 0; i < index; i++)
        if (all->of_kind[i] == all->of_kind[index])
            complain(l, v[0],
                     "found the pattern that begins \"%s\" again; expected another: one "
                     "kernel begins one kind of forward",
                     spec->kinds[i].name ? spec->kinds[i].name : "?");
}

static void take_forward(struct loader *l, const struct tree_node *node)
{
    static const struct key keys[] = { { "kind", true }, { "begin", true } };
    struct spec *spec = l->spec;
    if (!take_list(l, node, "a list of {kind: NAME, begin: ...}", SPEC_MAX_KINDS))
        return;
    for (size_t i = 0; i < node->n_items; i++) {
        const struct tree_node *v[N_OF(keys)];
        uint32_t index = spec->n_kinds++;
        struct spec_kind *kind = &spec->kinds[index];
        ((struct regexes *)spec->regexes)->of_kind[index] = NO_PATTERN;
        if (!take_map(l, node->items[i], "a forward", keys, N_OF(keys), v))
            continue;
        if (v[0] && take_name(l, v[0], false, &kind->name))
            for (uint32_t k = 0; k < index; k++)
                if (spec->kinds[k].name && !strcmp(spec->kinds[k].name, kind->name))
                    complain(l, v[0],
                             "found the kind \"%s\" a second time; expected it once: one "
                             "pattern may name several kernels, as '^(a|b)$'",
                             kind->name);
        if (v[1])
            take_begin(l, v[1], index);
    }
}

/* ---------------------------------------------------------------------------------------- sites */

/* What one entry of dims: says, until the strides that it leaves out are known. */
struct raw_dim {
    struct spec_dim dim;
    const struct tree_node *node, *count, *stride;
};

static bool check_constant(struct loader *l, const struct tree_node *node, const struct expr *e,
                           int64_t min, int64_t max)
{
    if (!expr_is_constant(e) || (expr_constant(e) >= min && expr_constant(e) <= max))
        return true;
    complain(l, node, "found the value %lld; expected %lld to %lld", (long long)expr_constant(e),
             (long long)min, (long long)max);
    return false;
}

static bool take_dim(struct loader *l, const struct tree_node *node, struct raw_dim *raw)
{
    static const struct key keys[] = { { "row", false }, { "count", true }, { "stride", false } };
    const struct tree_node *v[N_OF(keys)];
    raw->node = node;
    if (!take_map(l, node, "a dimension", keys, N_OF(keys), v))
        return false;
    raw->count = v[1];
    raw->stride = v[2];
    bool good = v[1] != NULL;
    if (v[0])
        good = take_bool(l, v[0], &raw->dim.is_row) && good;
    if (v[1]) {
        raw->dim.count = take_expr(l, v[1]);
        good = raw->dim.count && check_constant(l, v[1], raw->dim.count, 1, UINT32_MAX) && good;
    }
    if (v[2]) {
        raw->dim.stride = take_expr(l, v[2]);
        good = raw->dim.stride && check_constant(l, v[2], raw->dim.stride, 0, INT64_MAX) && good;
    }
    return good;
}

/* Fills in the strides that are left out. Dimensions stand in the file's order. */
static void pack_dims(struct loader *l, struct raw_dim *raws, size_t n, uint32_t dtype)
{
    const struct expr *counts[SPEC_MAX_DIMS];
    size_t n_counts = 0;
    const struct raw_dim *loose = NULL; /* the last dimension whose stride is not the packed one */
    for (size_t i = n; i-- > 0; n_counts++) {
        struct raw_dim *raw = &raws[i];
        struct expr *packed = NULL;
        int rc = expr_product(counts, n_counts, dmi_dtype_bytes(dtype), &packed);
        counts[n_counts] = raw->dim.count;
        if (rc == EXPR_E_OVERFLOW)
            complain(l, raw->node, "found dimensions whose bytes do not fit in 64 bits");
        else if (rc)
            l->no_memory = true;
        if (rc)
            return;
        if (raw->dim.stride) {
            if (!loose && !expr_same(raw->dim.stride, packed))
                loose = raw;
            expr_free(packed);
        } else {
            raw->dim.stride = packed;
            if (loose)
                complain(l, raw->node,
                         "found no \"stride\", though the stride at %u:%u is not the "
                         "packed one; expected \"stride: BYTES\" here too",
                         loose->stride->line, loose->stride->column);
        }
    }
    struct expr *bytes = NULL;
    int rc = expr_product(counts, n_counts, dmi_dtype_bytes(dtype), &bytes);
    if (rc == EXPR_E_OVERFLOW)
        complain(l, raws[0].node, "found dimensions whose bytes do not fit in 64 bits");
    else if (rc)
        l->no_memory = true;
    expr_free(bytes);
}

static void take_dims(struct loader *l, const struct tree_node *node, struct spec_site *site)
{
    struct raw_dim raws[SPEC_MAX_DIMS] = { 0 };
    if (!take_list(l, node, "a list of one to four {count: N, stride: BYTES}", SPEC_MAX_DIMS))
        return;
    size_t n = node->n_items, n_rows = 0, row = 0;
    if (!n)
        complain(l, node, "found no dimension; expected one to %d, one of them with row: true",
                 SPEC_MAX_DIMS);
    bool good = n > 0;
    for (size_t i = 0; i < n; i++) {
        good = take_dim(l, node->items[i], &raws[i]) && good;
        if (!raws[i].dim.is_row)
            continue;
        row = i;
        if (++n_rows == 2)
            complain(l, node->items[i], "found a second dimension with row: true; expected one");
    }
    if (good && !n_rows)
        complain(l, node,
                 "found no dimension with row: true; expected one: that along which tokens "
                 "or requests lie");
    if (good && site->about.dtype)
        pack_dims(l, raws, n, site->about.dtype);
    /* stored order: the row first, the others as they are */
    site->n_dims = (uint32_t)n;
    for (size_t i = 0, next = 1; i < n; i++)
        site->dims[i == row ? 0 : next++] = raws[i].dim;
}

static void take_occurrences(struct loader *l, const struct tree_node *node, struct spec_site *site)
{
    static const struct key keys[] = { { "expect", false }, { "from", false }, { "to", false } };
    const struct tree_node *v[N_OF(keys)];
    int64_t n;
    if (!take_map(l, node, "occurrences", keys, N_OF(keys), v))
        return;
    if (v[0] && take_integer(l, v[0], 1, OCCURRENCE_MAX, &n)) {
        site->about.expect = n;
        site->last_occurrence = (uint32_t)(n - 1);
    }
    int64_t max = site->about.expect > 0 ? site->about.expect - 1 : OCCURRENCE_MAX;
    if (v[1] && take_integer(l, v[1], 0, max, &n))
        site->first_occurrence = (uint32_t)n;
    if (v[2] && take_integer(l, v[2], 0, max, &n))
        site->last_occurrence = (uint32_t)n;
    if (site->first_occurrence > site->last_occurrence)
        complain(l, v[2], "found \"to\" below \"from\"; expected %u or more",
                 site->first_occurrence);
}

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* The layer, if it is a constant, and all layers of a site whose occurrences are known. */
static void check_layers(struct loader *l, const struct tree_node *node,
                         const struct spec_site *site)
{
    static const uint32_t zero[3];
    struct expr_env env = { .grid = zero, .block = zero };
    size_t n = 1;
    if (site->last_occurrence <= OCCURRENCE_MAX)
        n += site->last_occurrence - site->first_occurrence;
    else if (!expr_is_constant(site->layer))
        return;
    if (n > LAYERS_CHECKED)
        return;
    _cleanup_(freep) int64_t *layers = calloc(n, sizeof *layers);
    if (!layers) {
        l->no_memory = true;
        return;
    }
    for (size_t i = 0; i < n; i++) {
        env.occ = site->first_occurrence + (int64_t)i;
        int rc = expr_eval(site->layer, &env, &layers[i]);
        if (rc) {
            complain(l, node, "found no layer for occurrence %lld: %s; expected a value for each",
                     (long long)env.occ, rc == EXPR_E_DIVIDE ? "division by zero" : "overflow");
            return;
        }
        if (layers[i] < 0 || layers[i] > INT32_MAX) {
            complain(l, node, "found layer %lld for occurrence %lld; expected 0 to %d",
                     (long long)layers[i], (long long)env.occ, INT32_MAX);
            return;
        }
    }
    qsort(layers, n, sizeof *layers, by_value);
    for (size_t i = 1; i < n; i++)
        if (layers[i] == layers[i - 1]) {
            complain(l, node,
                     "found layer %lld for several occurrences; expected a layer of its own "
                     "for each of %u to %u",
                     (long long)layers[i], site->first_occurrence, site->last_occurrence);
            return;
        }
}

static void take_layer(struct loader *l, const struct tree_node *node, struct spec_site *site)
{
    site->layer = take_expr(l, node);
    if (!site->layer)
        return;
    if (expr_uses(site->layer) & EXPR_USES_LAUNCH) {
        complain(l, node,
                 "found a layer that depends on the launch; expected an expression of occ "
                 "and variables");
        return;
    }
    check_layers(l, node, site);
}

static const struct key site_keys[] = {
    { "name", true },    { "forward", false }, { "kernel", true }, { "pointer", true },
    { "offset", false }, { "dtype", true },    { "dims", true },   { "occurrences", false },
    { "layer", false },  { "when", false },    { "row", false },   { "scale", false },
    { "note", false },
};

enum site_key {
    SITE_NAME,
    SITE_FORWARD,
    SITE_KERNEL,
    SITE_POINTER,
    SITE_OFFSET,
    SITE_DTYPE,
    SITE_DIMS,
    SITE_OCCURRENCES,
    SITE_LAYER,
    SITE_WHEN,
    SITE_ROW,
    SITE_SCALE,
    SITE_NOTE,
};

static void take_site(struct loader *l, const struct tree_node *node, struct spec_site *site)
{
    static const char *const whens[] = { [SPEC_AFTER] = "after", [SPEC_BEFORE] = "before" };
    const char *rows[DMI_ROW_COUNT];
    for (uint32_t row = 0; row < DMI_ROW_COUNT; row++)
        rows[row] = dmi_row_name(row);
    struct regexes *all = l->spec->regexes;
    const struct tree_node *v[N_OF(site_keys)];
    site->line = (int)node->line;
    if (!take_map(l, node, "a site", site_keys, N_OF(site_keys), v))
        return;
    char *name = NULL, *kernel = NULL, *note = NULL;
    bool named = v[SITE_NAME] && take_name(l, v[SITE_NAME], true, &name);
    take_kind_name(l, v[SITE_FORWARD], &site->kind);
    if (v[SITE_KERNEL])
        take_pattern(l, v[SITE_KERNEL], &kernel, &all->of_site[site->about.id]);
    if (v[SITE_POINTER])
        take_pointer(l, v[SITE_POINTER], &site->pointer);
    if (v[SITE_OFFSET])
        site->offset = take_expr(l, v[SITE_OFFSET]);
    if (v[SITE_DTYPE])
        take_dtype(l, v[SITE_DTYPE], &site->about.dtype);
    if (v[SITE_DIMS])
        take_dims(l, v[SITE_DIMS], site);
    if (v[SITE_OCCURRENCES])
        take_occurrences(l, v[SITE_OCCURRENCES], site);
    if (v[SITE_LAYER])
        take_layer(l, v[SITE_LAYER], site);
    if (named && strstr(name, "{layer}") && !v[SITE_LAYER])
        complain(l, v[SITE_NAME],
                 "found \"{layer}\" in the name of a site without \"layer\"; "
                 "expected \"layer: EXPRESSION\" too");
    int word = v[SITE_WHEN] ? take_word(l, v[SITE_WHEN], whens, N_OF(whens)) : -1;
    if (word >= 0)
        site->when = (enum spec_when)word;
    word = v[SITE_ROW] ? take_word(l, v[SITE_ROW], rows, N_OF(rows)) : -1;
    if (word >= 0)
        site->about.row = (uint32_t)word;
    if (v[SITE_SCALE])
        take_scale(l, v[SITE_SCALE], &site->about.scale);
    if (v[SITE_NOTE])
        take_text(l, v[SITE_NOTE], &note);
    site->about.name = name;
    site->about.kernel = kernel;
    site->about.note = note;
    site->about.kind = site->kind >= 0 ? l->spec->kinds[site->kind].name : NULL;
    site->about.has_layer = site->layer != NULL;
}

/* Would both store the same key for the same launch? */
static bool collide(const struct spec_site *a, const struct spec_site *b)
{
    const struct dmi_site *x = &a->about, *y = &b->about;
    return x->name && y->name && x->kernel && y->kernel && !strcmp(x->name, y->name) &&
           !strcmp(x->kernel, y->kernel) && (a->kind < 0 || b->kind < 0 || a->kind == b->kind) &&
           a->first_occurrence <= b->last_occurrence && b->first_occurrence <= a->last_occurrence &&
           expr_same(a->layer, b->layer);
}

/*
 * No kernel that the patterns name may have more sites than a match holds. A pattern that is one name
 * tells which others match it, too; others are seen with their like only.
 */
static void check_crowd(struct loader *l, const struct tree_node *list)
{
    struct spec *spec = l->spec;
    const struct regexes *all = spec->regexes;
    size_t work = 0;
    for (size_t p = 0; p < all->n; p++) {
        const struct pattern *pattern = &all->patterns[p];
        char name[PATTERN_MAX_TEXT + 1] = "";
        if (pattern->literal && work < CROWD_MAX_WORK)
            memcpy(name, pattern->text + 1, strlen(pattern->text) - 2);
        uint32_t n = 0;
        for (uint32_t s = 0; s < spec->n_sites; s++) {
            if (!spec->sites[s].about.kernel)
                continue;
            const struct pattern *other = &all->patterns[all->of_site[s]];
            work += !other->literal && *name;
            if (other != pattern && (other->literal || !*name || !pattern_matches(other, name)))
                continue;
            if (++n == SPEC_MAX_MATCHES + 1)
                complain(l, list->items[s],
                         "found more than %d sites on the kernel \"%.100s\"; "
                         "expected fewer",
                         SPEC_MAX_MATCHES, pattern->text);
        }
    }
}

static void take_sites(struct loader *l, const struct tree_node *node)
{
    struct spec *spec = l->spec;
    if (!take_list(l, node, "a list of sites", SPEC_MAX_SITES))
        return;
    if (!node->n_items)
        complain(l, node, "found no site; expected one or more");
    spec->sites = calloc(node->n_items + 1, sizeof *spec->sites);
    if (!spec->sites) {
        l->no_memory = true;
        return;
    }
    for (size_t i = 0; i < node->n_items; i++) {
        struct spec_site *site = &spec->sites[i];
        *site = (struct spec_site){
            .about = { .id = (uint32_t)i, .expect = -1, .scale = 1 },
            .kind = -1,
            .last_occurrence = UINT32_MAX,
        };
        spec->n_sites++;
        take_site(l, node->items[i], site);
        for (size_t k = 0; k < i; k++)
            if (collide(&spec->sites[k], site)) {
                complain(l, node->items[i],
                         "found the site \"%s\" again for the same kernel, forward "
                         "and occurrences (first at line %d); expected them, the "
                         "name or the layer to differ",
                         site->about.name, spec->sites[k].line);
                break;
            }
    }
    check_crowd(l, node);
}

static void take_absent(struct loader *l, const struct tree_node *node)
{
    static const struct key keys[] = { { "name", true }, { "why", true }, { "forward", false } };
    struct spec *spec = l->spec;
    if (!take_list(l, node, "a list of {name: NAME, why: TEXT}", SPEC_MAX_SITES))
        return;
    spec->absent = calloc(node->n_items + 1, sizeof *spec->absent);
    if (!spec->absent) {
        l->no_memory = true;
        return;
    }
    for (size_t i = 0; i < node->n_items; i++) {
        const struct tree_node *v[N_OF(keys)];
        struct spec_absent *absent = &spec->absent[spec->n_absent++];
        absent->kind = -1;
        if (!take_map(l, node->items[i], "an absent tensor", keys, N_OF(keys), v))
            continue;
        bool known = take_kind_name(l, v[2], &absent->kind);
        if (v[1])
            take_text(l, v[1], &absent->why);
        if (!v[0] || !take_name(l, v[0], false, &absent->name) || !known)
            continue;
        for (uint32_t s = 0; s < spec->n_sites; s++) {
            const struct spec_site *site = &spec->sites[s];
            if (!site->about.name || strcmp(site->about.name, absent->name) ||
                (absent->kind >= 0 && site->kind >= 0 && absent->kind != site->kind))
                continue;
            complain(l, v[0],
                     "found \"%s\" listed as absent, though the site at line %d captures it; "
                     "expected \"forward: KIND\" in both, or one of the two",
                     absent->name, site->line);
            break;
        }
    }
}

static const struct key top_keys[] = {
    { "hookspec", true },    { "name", false },   { "model", false },    { "vars", false },
    { "convention", false }, { "ring", false },   { "overload", false }, { "forward", false },
    { "sites", true },       { "absent", false },
};

enum top_key {
    TOP_HOOKSPEC,
    TOP_NAME,
    TOP_MODEL,
    TOP_VARS,
    TOP_CONVENTION,
    TOP_RING,
    TOP_OVERLOAD,
    TOP_FORWARD,
    TOP_SITES,
    TOP_ABSENT,
};

/* The file's name without folders and ending. */
static char *default_name(struct loader *l, const char *path)
{
    const char *slash = strrchr(path, '/');
    char *name = copy(l, slash ? slash + 1 : path);
    char *dot = name ? strrchr(name, '.') : NULL;
    if (dot && dot != name)
        *dot = 0;
    return name;
}

/* Return: false where another version makes everything else guesswork. */
static bool check_version(struct loader *l, const struct tree_node *root)
{
    char was[128];
    if (root->kind != TREE_MAP)
        return true; /* take_map() says so */
    for (size_t i = 0; i < root->n_items; i += 2) {
        const struct tree_node *key = root->items[i], *value = root->items[i + 1];
        int64_t version;
        if (key->kind != TREE_SCALAR || strcmp(key->text, "hookspec"))
            continue;
        if (i)
            complain(l, key, "found \"hookspec\" behind other keys; expected it first");
        if (value->kind == TREE_SCALAR && parse_integer(value->text, &version) &&
            version == SPEC_VERSION)
            return true;
        complain(l, value, "found HookSpec version %s; expected %d, the one that this build reads",
                 found(value, was, sizeof was), SPEC_VERSION);
        return false;
    }
    return true;
}

static void take_spec(struct loader *l, const struct tree_node *root, const char *const *vars,
                      size_t n_vars)
{
    struct spec *spec = l->spec;
    const struct tree_node *v[N_OF(top_keys)];
    if (!check_version(l, root) || !take_map(l, root, "a HookSpec", top_keys, N_OF(top_keys), v))
        return;
    if (v[TOP_VARS])
        take_vars(l, v[TOP_VARS]);
    for (size_t i = 0; i < n_vars; i++)
        override_var(l, vars[i]);
    keep_vars(l);
    if (v[TOP_NAME])
        take_text(l, v[TOP_NAME], &spec->name);
    else
        spec->name = default_name(l, spec->path);
    if (v[TOP_MODEL])
        take_text(l, v[TOP_MODEL], &spec->model);
    if (v[TOP_CONVENTION])
        take_convention(l, v[TOP_CONVENTION]);
    if (v[TOP_RING])
        take_ring(l, v[TOP_RING]);
    if (v[TOP_OVERLOAD])
        take_overload(l, v[TOP_OVERLOAD]);
    if (v[TOP_FORWARD])
        take_forward(l, v[TOP_FORWARD]);
    if (v[TOP_SITES])
        take_sites(l, v[TOP_SITES]);
    if (v[TOP_ABSENT])
        take_absent(l, v[TOP_ABSENT]);
}

/* -------------------------------------------------------------------------------------- loading */

static void free_pairs(struct spec_pair *pairs, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        free(pairs[i].key);
        free(pairs[i].value);
    }
    free(pairs);
}

static void free_sites(struct spec *spec)
{
    for (uint32_t i = 0; i < spec->n_sites; i++) {
        struct spec_site *site = &spec->sites[i];
        for (uint32_t d = 0; d < SPEC_MAX_DIMS; d++) {
            expr_free(site->dims[d].count);
            expr_free(site->dims[d].stride);
        }
        expr_free(site->offset);
        expr_free(site->layer);
        free((char *)site->about.name);
        free((char *)site->about.kernel);
        free((char *)site->about.note);
    }
    free(spec->sites);
}

static void free_regexes(struct regexes *all)
{
    if (!all)
        return;
    for (size_t i = 0; i < all->n; i++)
        pattern_deinit(&all->patterns[i]);
    free(all->patterns);
    free(all);
}

void spec_free(struct spec *spec)
{
    if (!spec)
        return;
    free_regexes(spec->regexes);
    free_sites(spec);
    for (uint32_t i = 0; i < spec->n_kinds; i++) {
        free(spec->kinds[i].name);
        free(spec->kinds[i].kernel);
    }
    for (size_t i = 0; i < spec->n_absent; i++) {
        free(spec->absent[i].name);
        free(spec->absent[i].why);
    }
    free(spec->absent);
    free_pairs(spec->conventions, spec->n_conventions);
    free_pairs(spec->vars, spec->n_vars);
    free(spec->path);
    free(spec->text);
    free(spec->name);
    free(spec->model);
    free(spec);
}

static void spec_freep(struct spec **spec)
{
    spec_free(*spec);
}

void spec_errors_deinit(struct spec_errors *errors)
{
    for (size_t i = 0; i < errors->n_lines; i++)
        free(errors->lines[i]);
    free(errors->lines);
    *errors = (struct spec_errors){ 0 };
}

/* Takes ownership of @text, which may be NULL. */
static struct spec *spec_new(const char *path, char *text, size_t n_text)
{
    _cleanup_(spec_freep) struct spec *spec = calloc(1, sizeof *spec);
    if (!spec) {
        free(text);
        return NULL;
    }
    spec->text = text;
    spec->n_text = n_text;
    spec->path = strdup(path);
    spec->overload_wait_ns = DEFAULT_WAIT_MS * (uint64_t)1000000;
    struct regexes *all = spec->regexes = calloc(1, sizeof *all);
    if (!text || !spec->path || !all)
        return NULL;
    all->patterns = calloc(SPEC_MAX_SITES + SPEC_MAX_KINDS, sizeof *all->patterns);
    if (!all->patterns)
        return NULL;
    return steal_ptr(spec);
}

/* Reads spec->text. Takes no ownership. Return: 0, SPEC_E_INVALID, -ENOMEM. */
static int parse_text(struct spec *spec, const char *const *vars, size_t n_vars,
                      struct spec_errors *errors)
{
    _cleanup_(freep) struct loader *l = calloc(1, sizeof *l);
    if (!l)
        return -ENOMEM;
    l->spec = spec;
    l->report.path = spec->path;
    l->pattern_room = PATTERN_MAX_TOTAL;
    struct tree tree;
    struct tree_error error;
    int rc = tree_parse(spec->text, spec->n_text, &tree, &error);
    if (rc == TREE_E_SYNTAX)
        report_add(&l->report, error.line, error.column, "%s", error.msg);
    else if (rc)
        l->no_memory = true;
    else if (!tree.root)
        report_add(&l->report, 1, 1, "found an empty file; expected \"hookspec: %d\"",
                   SPEC_VERSION);
    else
        take_spec(l, tree.root, vars, n_vars);
    tree_deinit(&tree);
    rc = report_finish(&l->report, &errors->lines, &errors->n_lines);
    if (rc || l->no_memory)
        return -ENOMEM;
    return errors->n_lines ? SPEC_E_INVALID : 0;
}

/* Takes ownership of @text. */
static int load_text(const char *path, char *text, size_t n_text, const char *const *vars,
                     size_t n_vars, struct spec_errors *errors, struct spec **out)
{
    _cleanup_(spec_freep) struct spec *spec = spec_new(path, text, n_text);
    if (!spec)
        return -ENOMEM;
    int rc = parse_text(spec, vars, n_vars, errors);
    if (!rc)
        *out = steal_ptr(spec);
    return rc;
}

static int one_error(const char *path, struct spec_errors *errors, const char *what)
{
    struct report report = { .path = path };
    report_add(&report, 0, 0, "%s", what);
    int rc = report_finish(&report, &errors->lines, &errors->n_lines);
    return rc ? rc : SPEC_E_INVALID;
}

int spec_parse(const char *path, const char *text, size_t n_text, const char *const *vars,
               size_t n_vars, struct spec_errors *errors, struct spec **out)
{
    *errors = (struct spec_errors){ 0 };
    if (n_text > SPEC_MAX_BYTES)
        return one_error(path, errors, "found a file of more than 1 MiB; expected a HookSpec");
    char *own = malloc(n_text + 1);
    if (!own)
        return -ENOMEM;
    if (n_text)
        memcpy(own, text, n_text);
    own[n_text] = 0;
    return load_text(path, own, n_text, vars, n_vars, errors, out);
}

int spec_load(const char *path, const char *const *vars, size_t n_vars, struct spec_errors *errors,
              struct spec **out)
{
    *errors = (struct spec_errors){ 0 };
    /* O_NONBLOCK: a FIFO without a writer must not stop the host */
    _cleanup_(closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    struct stat st;
    if (fd < 0 || fstat(fd, &st))
        return -errno;
    if (!S_ISREG(st.st_mode))
        return one_error(path, errors,
                         S_ISDIR(st.st_mode) ? "found a folder; expected a file"
                                             : "found a pipe or device; expected a file, which "
                                               "processes that start later can read again");
    _cleanup_(freep) char *text = malloc(SPEC_MAX_BYTES + 2);
    if (!text)
        return -ENOMEM;
    size_t n = 0;
    while (n <= SPEC_MAX_BYTES) {
        ssize_t got = read(fd, text + n, SPEC_MAX_BYTES + 1 - n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -errno;
        if (got == 0)
            break;
        n += (size_t)got;
    }
    return spec_parse(path, text, n, vars, n_vars, errors, out);
}

size_t spec_split_vars(char *text, const char **out, size_t max)
{
    size_t n = 0;
    for (char *save = NULL, *p = strtok_r(text, ",", &save); p; p = strtok_r(NULL, ",", &save)) {
        if (n == max)
            return SIZE_MAX;
        out[n++] = p;
    }
    return n;
}

/* ------------------------------------------------------------------------------------- matching */

bool spec_match_kernel(const struct spec *spec, const char *name, const char *demangled,
                       struct spec_match *match)
{
    const struct regexes *all = spec->regexes;
    bool hit[SPEC_MAX_SITES + SPEC_MAX_KINDS];
    for (size_t i = 0; i < all->n; i++)
        hit[i] = pattern_matches(&all->patterns[i], name) ||
                 (demangled && pattern_matches(&all->patterns[i], demangled));
    *match = (struct spec_match){ .kind = -1 };
    for (uint32_t i = 0; i < spec->n_kinds && match->kind < 0; i++)
        if (spec->kinds[i].kernel && hit[all->of_kind[i]])
            match->kind = (int)i;
    for (uint32_t i = 0; i < spec->n_sites && match->n_sites < SPEC_MAX_MATCHES; i++)
        if (hit[all->of_site[i]])
            match->sites[match->n_sites++] = i;
    return match->kind >= 0 || match->n_sites;
}
