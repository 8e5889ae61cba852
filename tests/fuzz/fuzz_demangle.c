/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a mangled name: a text or none, the same each time. */
#include "preload/base/demangle.h"
#include "preload/base/own_stack.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void twice(void *arg)
{
    char *a = demangle(arg), *b = demangle(arg);
    if (!a != !b || (a && strcmp(a, b)))
        abort();
    free(a);
    free(b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char *name = malloc(n + 3);
    if (!name)
        return 0;
    memcpy(name, "_Z", 2);
    memcpy(name + 2, data, n);
    name[n + 2] = 0;
    own_stack_run(twice, name);
    free(name);
    return 0;
}
