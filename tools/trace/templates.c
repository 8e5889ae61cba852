/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/trace/templates.h"

#include "read/value.h"

#include <stdio.h>
#include <string.h>

#define DEEPEST 16 /* levels of arguments within arguments that are compared by themselves */

/* A part of a name. */
struct name_part {
    const char *at, *end;
};

static bool is_same(struct name_part a, struct name_part b)
{
    return a.end - a.at == b.end - b.at && !memcmp(a.at, b.at, (size_t)(a.end - a.at));
}

/* ------------------------------------------------------------------------- brackets */

/* The end of what is in round, square or curly brackets at the begin of @p. */
static const char *skip_brackets(struct name_part p)
{
    const char open = *p.at, close = open == '(' ? ')' : (char)(open + 2); /* by ASCII */
    size_t depth = 0;
    for (; p.at < p.end; p.at++) {
        depth += *p.at == open;
        if (*p.at == close && !--depth)
            return p.at + 1;
    }
    return p.at;
}

static bool opens(char c)
{
    return c == '(' || c == '[' || c == '{';
}

/* The end of the template arguments at the begin of @p, a '<'. Within other brackets that would mean: less. */
static const char *skip_arguments(struct name_part p)
{
    size_t depth = 0;
    while (p.at < p.end) {
        if (opens(*p.at)) {
            p.at = skip_brackets(p);
            continue;
        }
        depth += *p.at == '<';
        if (*p.at++ == '>' && !--depth)
            break;
    }
    return p.at;
}

/* The end of what begins @p: of all in brackets, or of one character. */
static const char *skip(struct name_part p)
{
    if (*p.at == '<')
        return skip_arguments(p);
    return opens(*p.at) ? skip_brackets(p) : p.at + 1;
}

/* ------------------------------------------------------------------------- a name */

bool template_read(const char *name, struct template_name *out)
{
    struct name_part p = { name, name + strlen(name) };
    const char *begin = name; /* after the type that it returns */
    while (p.at < p.end) {
        const char *end = skip(p);
        if (*p.at == '<' && *end == '(' && end[-1] == '>') { /* its parameters follow */
            *out = (struct template_name){ begin, (size_t)(p.at - begin), p.at + 1,
                                           (size_t)(end - p.at) - 2 };
            return true;
        }
        if (*p.at == ' ')
            begin = end;
        p.at = end;
    }
    return false;
}

static struct name_part function_of(const struct template_name *t)
{
    return (struct name_part){ t->function, t->function + t->n_function };
}

static struct name_part arguments_of(const struct template_name *t)
{
    return (struct name_part){ t->arguments, t->arguments + t->n_arguments };
}

bool template_same(const struct template_name *a, const struct template_name *b)
{
    return is_same(function_of(a), function_of(b));
}

/* ------------------------------------------------------------------------- arguments */

/* Takes the next argument from the front of @list. Return: false: there is none. */
static bool next(struct name_part *list, struct name_part *argument)
{
    while (list->at < list->end && *list->at == ' ')
        list->at++;
    if (list->at >= list->end)
        return false;
    argument->at = list->at;
    while (list->at < list->end && *list->at != ',')
        list->at = skip(*list);
    argument->end = list->at;
    list->at += list->at < list->end;
    while (argument->end > argument->at && argument->end[-1] == ' ')
        argument->end--;
    return true;
}

static size_t count(struct name_part list)
{
    struct name_part argument;
    size_t n = 0;
    while (next(&list, &argument))
        n++;
    return n;
}

size_t template_alike(const struct template_name *a, const struct template_name *b)
{
    struct name_part lists[2] = { arguments_of(a), arguments_of(b) }, x, y;
    size_t n = 0;
    while (next(&lists[0], &x) && next(&lists[1], &y))
        n += is_same(x, y);
    return n;
}

/* The arguments of an argument that has any, and what stands before and after them. */
static bool split(struct name_part argument, struct name_part *before, struct name_part *list,
                  struct name_part *after)
{
    struct name_part p = argument;
    while (p.at < p.end && *p.at != '<')
        p.at = skip(p);
    if (p.at >= p.end)
        return false;
    const char *end = skip_arguments(p);
    *before = (struct name_part){ argument.at, p.at };
    *list = (struct name_part){ p.at + 1, end > p.at + 1 ? end - 1 : end };
    *after = (struct name_part){ end, p.end };
    return true;
}

/* Differ these two in the arguments that they have themselves alone, as many in both? Then these are @lists. */
static bool differ_within(struct name_part a, struct name_part b, struct name_part lists[2])
{
    struct name_part before[2], after[2];
    return split(a, &before[0], &lists[0], &after[0]) &&
           split(b, &before[1], &lists[1], &after[1]) && is_same(before[0], before[1]) &&
           is_same(after[0], after[1]) && count(lists[0]) == count(lists[1]);
}

static int add_change(json_t *to, const char *place, struct name_part a, struct name_part b)
{
    return json_array_append_new(to, json_pack("{s:s, s:o, s:o}", "place", place, "a",
                                               value_bytes(a.at, (size_t)(a.end - a.at)), "b",
                                               value_bytes(b.at, (size_t)(b.end - b.at))));
}

/* @place: where the lists are, "1.3."; as many arguments in both. */
static int compare(json_t *to, const char *place, unsigned depth, struct name_part a,
                   struct name_part b)
{
    struct name_part x, y, lists[2];
    int r = 0;
    for (unsigned i = 1; !r && next(&a, &x) && next(&b, &y); i++) {
        char here[DEEPEST * 12 + 16], within[sizeof here + 1];
        if (is_same(x, y))
            continue;
        snprintf(here, sizeof here, "%s%u", place, i);
        if (depth >= DEEPEST || !differ_within(x, y, lists)) {
            r = add_change(to, here, x, y);
            continue;
        }
        snprintf(within, sizeof within, "%s.", here);
        r = compare(to, within, depth + 1, lists[0], lists[1]);
    }
    return r;
}

json_t *template_changes(const struct template_name *a, const struct template_name *b)
{
    struct name_part x = arguments_of(a), y = arguments_of(b);
    json_t *to = json_array();
    int r = count(x) == count(y) ? compare(to, "", 0, x, y) : add_change(to, "", x, y);
    if (!r)
        return to;
    json_decref(to);
    return NULL;
}
