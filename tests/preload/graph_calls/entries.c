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
    bool lacking;
} table[] = {
#define ENTRY_ROW(symbol, name, version) { #symbol, #name, version, NULL, NULL, NULL, false },
    ENTRIES(ENTRY_ROW)
#undef ENTRY_ROW
};

/* What a driver is too old for: the program goes on as after any other error. */
static CUresult lacking(void)
{
    return CUDA_ERROR_NOT_SUPPORTED;
}

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
    __typeof__(cuGetProcAddress_v2) *ask_v2 = dlsym(library, "cuGetProcAddress_v2");
    __typeof__(cuDriverGetVersion) *get_version =
        must(dlsym(library, "cuDriverGetVersion"), "cuDriverGetVersion");
    int version = 0;
    get_version(&version);
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        table[i].lacking = table[i].version > version;
        if (table[i].lacking) {
            table[i].symbolic = table[i].asked = table[i].asked_v2 = (void *)(uintptr_t)lacking;
            continue;
        }
        table[i].symbolic = must(dlsym(library, table[i].symbol), table[i].symbol);
        cuuint64_t flags =
            strstr(table[i].symbol, "_ptsz") ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : 0;
        ask(table[i].name, &table[i].asked, table[i].version, flags);
        must(table[i].asked, table[i].name);
        if (ask_v2)
            ask_v2(table[i].name, &table[i].asked_v2, table[i].version, flags, NULL);
        else
            table[i].asked_v2 = table[i].asked;
        must(table[i].asked_v2, table[i].name);
    }
}

bool entries_lack(enum entry_id id)
{
    return table[id].lacking;
}

bool older_form(struct program *p, unsigned percent, enum entry_id newer)
{
    return chance(p, percent) || entries_lack(newer);
}

void *entry(struct program *p, enum entry_id id)
{
    uint32_t way = p ? pick(p, 4) : 0;
    return way == 3 ? table[id].asked_v2 : way == 2 ? table[id].asked : table[id].symbolic;
}
