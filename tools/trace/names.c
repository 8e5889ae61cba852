/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/trace/names.h"

#include "core/cleanup.h"
#include "core/demangle.h"
#include "core/own_stack.h"
#include "tools/trace/templates.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define LONGEST 72 /* bytes of a name; of a longer one */
#define BEGIN   46 /* so many at its begin, */
#define END     23 /* and so many at its end */

struct hidden {
    const char *name;
    char *found;
};

static void find(void *arg)
{
    struct hidden *h = arg;
    h->found = demangle(h->name);
}

char *names_demangled(const char *name)
{
    struct hidden hidden = { .name = name };
    if (demangle_is_for(name))
        own_stack_run(find, &hidden, demangle_stack(name));
    return hidden.found ? hidden.found : strdup(name);
}

static bool is_word(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

/* Adds @n bytes of a name without the namespaces before each word. */
static void add_unqualified(struct text *to, const char *from, size_t n)
{
    static const char nameless[] = "(anonymous namespace)::";
    for (const char *at = from, *end = from + n; at < end;) {
        const char *word = at;
        if ((size_t)(end - at) > sizeof nameless - 2 &&
            !strncmp(at, nameless, sizeof nameless - 1)) {
            at += sizeof nameless - 1;
            continue;
        }
        while (at < end && is_word(*at))
            at++;
        if (at > word && at + 1 < end && at[0] == ':' && at[1] == ':') {
            at += 2;
            continue;
        }
        at += at == word;
        text_add(to, word, (size_t)(at - word));
    }
}

/* Where the parameters of a function without template arguments begin. What begins with a parenthesis is none's name. */
static size_t before_parameters(const char *name)
{
    for (const char *p = name; (p = strchr(p, '(')); p++)
        if (p > name && strncmp(p, "(anonymous", 10) != 0)
            return (size_t)(p - name);
    return strlen(name);
}

static void add_plain(struct text *to, const char *name)
{
    struct template_name parts;
    if (!template_read(name, &parts)) {
        add_unqualified(to, name, before_parameters(name));
        return;
    }
    add_unqualified(to, parts.function, parts.n_function);
    text_add(to, "<", 1);
    add_unqualified(to, parts.arguments, parts.n_arguments);
    text_add(to, ">", 1);
}

void names_short(struct text *to, const char *name)
{
    _cleanup_(text_deinit) struct text plain = { 0 };
    _cleanup_(freep) char *found = names_demangled(name);
    add_plain(&plain, found ? found : name);
    to->failed |= plain.failed;
    if (plain.failed || plain.n <= LONGEST) {
        text_add(to, plain.n ? plain.data : "", plain.n);
        return;
    }
    text_add(to, plain.data, BEGIN);
    text_add(to, "...", 3);
    text_add(to, plain.data + plain.n - END, END);
}
