/* SPDX-License-Identifier: Apache-2.0 */
/*
 * operators.c - which own kernel stands in which other one's place
 *
 * The table has whole names, demangled, in the order of strcmp(): kernels.py and pack.py write it. What the demangler leaves out is
 * the hash and the file of an anonymous namespace; no two kernels of PyTorch's wheel differ in that alone (test_operators.py).
 */
#include "operators.h"

#include "core/demangle.h"
#include "core/own_stack.h"

#include <stdlib.h>
#include <string.h>

struct row {
    const char *name, *entry;
    size_t at, size;
};

static const struct row rows[] = {
#include "operators.inc"
};

extern const char operators_images[] __attribute__((visibility("hidden")));

struct question {
    const char *mangled;
    char *name;
};

static void ask(void *arg)
{
    struct question *question = arg;
    question->name = demangle(question->mangled);
}

static int compare(const void *name, const void *row)
{
    return strcmp(name, ((const struct row *)row)->name);
}

int operators_find(const char *mangled, struct operator* found)
{
    struct question question = { mangled, NULL };
    if (!demangle_is_for(mangled) || !own_stack_run(ask, &question, demangle_stack(mangled)) ||
        !question.name)
        return -1;
    const struct row *row =
        bsearch(question.name, rows, sizeof rows / sizeof *rows, sizeof *rows, compare);
    free(question.name);
    if (!row)
        return -1;
    *found = (struct operator){ operators_images + row->at, row->size, row->entry };
    return 0;
}
