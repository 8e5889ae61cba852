/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preloaded before libdmi_preload.so: the FAIL_ALLOC-th allocation that the library asks for finds no memory, or with
 * FAIL_ALLOC=N+ that and all after it. Counted from its first graph on; FAIL_ALLOC_FILE gets the number of all.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *old, size_t size);

static unsigned long at;
static int from_then_on, counting;
static unsigned long n_allocations;

static __attribute__((constructor)) void read_environment(void)
{
    const char *text = getenv("FAIL_ALLOC");
    char *end = NULL;
    at = text ? strtoul(text, &end, 10) : 0;
    from_then_on = end && *end == '+';
}

static __attribute__((destructor)) void tell(void)
{
    const char *path = getenv("FAIL_ALLOC_FILE");
    FILE *file = path ? fopen(path, "w") : NULL;
    if (file) {
        fprintf(file, "%lu\n", n_allocations);
        fclose(file);
    }
}

/* Is @caller in the library? Only once the program has named the file that says so. */
static int fails(void *caller)
{
    static __thread int inside;
    Dl_info info;
    const char *mark = getenv("FAIL_ALLOC_FROM");
    if (!at || inside)
        return 0;
    inside = 1;
    counting = counting || !mark || access(mark, F_OK) == 0;
    int ours = counting && dladdr(caller, &info) && strstr(info.dli_fname, "libdmi_preload");
    inside = 0;
    unsigned long n = ours ? __atomic_add_fetch(&n_allocations, 1, __ATOMIC_RELAXED) : 0;
    return ours && (n == at || (from_then_on && n > at));
}

EXPORT void *malloc(size_t size)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_malloc(size);
}

EXPORT void *calloc(size_t n, size_t size)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_calloc(n, size);
}

EXPORT void *realloc(void *old, size_t size)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_realloc(old, size);
}
