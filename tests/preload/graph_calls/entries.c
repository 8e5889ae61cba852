/* SPDX-License-Identifier: Apache-2.0 */
/* Finding the driver, and each entry point in two ways. */
#include "program.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

static struct {
    const char *symbol, *name;
    int version;
    void *symbolic, *asked, *asked_v2;
} table[] = {
#define ENTRY_ROW(symbol, name, version) { #symbol, #name, version, NULL, NULL, NULL },
    ENTRIES(ENTRY_ROW)
#undef ENTRY_ROW
};

static void *must(void *found, const char *what)
{
    if (!found) {
        fprintf(stderr, "graph_calls: the driver has no %s\n", what);
        exit(2);
    }
    return found;
}

void entries_load(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "graph_calls: %s\n", dlerror());
        exit(77);
    }
    __typeof__(cuGetProcAddress) *ask =
        must(dlsym(library, "cuGetProcAddress"), "cuGetProcAddress");
    __typeof__(cuGetProcAddress_v2) *ask_v2 =
        must(dlsym(library, "cuGetProcAddress_v2"), "cuGetProcAddress_v2");
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        table[i].symbolic = must(dlsym(library, table[i].symbol), table[i].symbol);
        cuuint64_t flags =
            strstr(table[i].symbol, "_ptsz") ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : 0;
        ask(table[i].name, &table[i].asked, table[i].version, flags);
        ask_v2(table[i].name, &table[i].asked_v2, table[i].version, flags, NULL);
        must(table[i].asked, table[i].name);
        must(table[i].asked_v2, table[i].name);
    }
}

void *entry(struct program *p, enum entry_id id)
{
    uint32_t way = p ? pick(p, 4) : 0;
    return way == 3 ? table[id].asked_v2 : way == 2 ? table[id].asked : table[id].symbolic;
}
