/* SPDX-License-Identifier: Apache-2.0 */
#include "core/demangle.h"

#include "core/grow.h"

#include <libiberty/demangle.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define MOST (4u << 20) /* bytes of a text: a name of 40 bytes can ask for a terabyte */

struct demangled {
    char *at;
    size_t n, room;
    jmp_buf too_much;
};

/* libiberty's callbacks cannot refuse. It holds no memory but its stack when it calls, so it may be left from here. */
static void append(const char *part, size_t n, void *arg)
{
    struct demangled *text = arg;
    while (text->room <= text->n + n)
        if (text->room >= MOST || grow((void **)&text->at, text->room, &text->room, 1, 256))
            longjmp(text->too_much, 1);
    memcpy(text->at + text->n, part, n);
    text->n += n;
}

size_t demangle_stack(const char *name)
{
    return (1u << 20) + strlen(name) * 2048;
}

/* The text belongs to the caller: a local variable that append() changes would be undefined after the jump. */
static bool fill(struct demangled *text, const char *name)
{
    /* Without the limit of recursion it also takes names beyond 1,024 characters. */
    return !setjmp(text->too_much) &&
           cplus_demangle_v3_callback(name, DMGL_PARAMS | DMGL_NO_RECURSE_LIMIT, append, text);
}

char *demangle(const char *name)
{
    struct demangled text = { 0 };
    if (!fill(&text, name) || !text.at) {
        free(text.at);
        return NULL;
    }
    text.at[text.n] = 0;
    return text.at;
}
