/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A library that is preloaded before all others and counts: which of the driver's functions a program looks up, by
 * dlsym() or by the driver's own resolver, whose function it got, and how often it called that. Then a program that never
 * came by the library and a spec that names another place look different. In the library itself this would cost every
 * launch; here it costs the programs of tests.
 *
 * It answers every lookup of a driver's function with a thunk (thunks.S). When the process ends it appends one line
 * of JSON to the file $DMI_TEST_WITNESS. It does not see what is linked by name, found by RTLD_DEFAULT or
 * RTLD_NEXT, or looked up in a namespace of its own (dlmopen).
 */
#define __CUDA_API_VERSION_INTERNAL
#include "slots.h"

#include <cuda.h>
#include <ctype.h>
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Static_assert(sizeof(struct witness_slot) == WITNESS_SLOT_BYTES, "thunks.S");

#define HIDDEN __attribute__((visibility("hidden")))

typedef void *dlsym_fn(void *, const char *);

HIDDEN struct witness_slot witness_slots[WITNESS_SLOTS];
HIDDEN dlsym_fn *dlsym_real; /* preload/hook/dlsym.S jumps through it */
HIDDEN bool dlsym_route(void *handle, const char *name, void **answer);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned n_slots;
static pid_t first_pid;

/* ------------------------------------------------------------------ the dlsym() of whoever comes next */

/* Of a loaded object, from its dynamic section. */
struct symbols {
    const ElfW(Sym) * table;
    const char *strings;
    const uint32_t *hash;
};

static uint32_t gnu_hash(const char *name)
{
    uint32_t h = 5381;
    for (; *name; name++)
        h = h * 33 + (unsigned char)*name;
    return h;
}

static const ElfW(Sym) * find(const struct symbols *s, const char *name)
{
    uint32_t n_buckets = s->hash[0], first = s->hash[1], bloom = s->hash[2];
    const uint32_t *buckets = s->hash + 4 + bloom * (sizeof(ElfW(Addr)) / 4);
    const uint32_t *chain = buckets + n_buckets;
    uint32_t h = gnu_hash(name), i = n_buckets ? buckets[h % n_buckets] : 0;
    for (; i && i >= first; i++) {
        const ElfW(Sym) *symbol = &s->table[i];
        if ((chain[i - first] | 1) == (h | 1) && symbol->st_shndx != SHN_UNDEF &&
            !strcmp(s->strings + symbol->st_name, name))
            return symbol;
        if (chain[i - first] & 1)
            break;
    }
    return NULL;
}

static void *symbol_in(const struct link_map *map, const char *name)
{
    struct symbols s = { 0 };
    for (const ElfW(Dyn) *d = map->l_ld; d->d_tag != DT_NULL; d++) {
        /* glibc has added the load address to these */
        if (d->d_tag == DT_SYMTAB)
            s.table = (const void *)d->d_un.d_ptr;
        else if (d->d_tag == DT_STRTAB)
            s.strings = (const void *)d->d_un.d_ptr;
        else if (d->d_tag == DT_GNU_HASH)
            s.hash = (const void *)d->d_un.d_ptr;
    }
    if (!s.table || !s.strings || !s.hash || (ElfW(Addr))s.hash < map->l_addr)
        return NULL;
    const ElfW(Sym) *symbol = find(&s, name);
    return symbol ? (void *)(map->l_addr + symbol->st_value) : NULL;
}

/* In the order of loading: another preload's, or libc's. dlvsym() would pass by one that has no version. */
static dlsym_fn *next_dlsym(void)
{
    Dl_info self;
    struct link_map *map = NULL;
    void *found = NULL;
    if (!dladdr1((void *)next_dlsym, &self, (void **)&map, RTLD_DL_LINKMAP))
        return NULL;
    for (map = map->l_next; map && !found; map = map->l_next)
        found = symbol_in(map, "dlsym");
    return (dlsym_fn *)found;
}

/* ------------------------------------------------------------------ slots */

static const char *file_of(const void *address, const char **symbol)
{
    Dl_info info;
    if (!dladdr(address, &info) || !info.dli_fname)
        return "";
    if (symbol)
        *symbol = info.dli_sname;
    const char *slash = strrchr(info.dli_fname, '/');
    return slash ? slash + 1 : info.dli_fname;
}

static bool is_function_of_driver(const void *address)
{
    const char *file = file_of(address, NULL);
    return !strncmp(file, "libcuda.so", 10) || !strcmp(file, "libdmi_preload.so");
}

/* The exported name where it begins as @asked does: resolvers are asked without suffixes. */
static const char *name_of(const void *target, const char *asked)
{
    const char *exported = NULL;
    file_of(target, &exported);
    return exported && !strncmp(exported, asked, strlen(asked)) ? exported : strdup(asked);
}

static struct witness_slot *slot_of(void *target, const char *asked)
{
    for (unsigned i = 0; i < n_slots; i++)
        if (witness_slots[i].target == target)
            return &witness_slots[i];
    if (n_slots == WITNESS_SLOTS)
        return NULL;
    struct witness_slot *slot = &witness_slots[n_slots];
    slot->target = target;
    slot->name = name_of(target, asked);
    n_slots++;
    return slot;
}

static CUresult resolve_v1(const char *symbol, void **pfn, int version, cuuint64_t flags);
static CUresult resolve_v2(const char *symbol, void **pfn, int version, cuuint64_t flags,
                           CUdriverProcAddressQueryResult *status);
static struct witness_slot *resolvers[2];

/* What to give in @target's place. */
static void *note(void *target, const char *asked, bool by_resolver)
{
    pthread_mutex_lock(&lock);
    struct witness_slot *slot = slot_of(target, asked);
    void *answer = target;
    if (slot) {
        *(by_resolver ? &slot->by_resolver : &slot->by_dlsym) += 1;
        answer = witness_thunks + (slot - witness_slots) * WITNESS_SLOT_BYTES;
        if (!strcmp(slot->name, "cuGetProcAddress")) {
            resolvers[0] = slot;
            answer = (void *)resolve_v1;
        } else if (!strcmp(slot->name, "cuGetProcAddress_v2")) {
            resolvers[1] = slot;
            answer = (void *)resolve_v2;
        }
    }
    pthread_mutex_unlock(&lock);
    return answer;
}

/* ------------------------------------------------------------------ lookups */

static CUresult resolved(CUresult r, const char *symbol, void **pfn)
{
    if (r == CUDA_SUCCESS && symbol && pfn && *pfn && is_function_of_driver(*pfn))
        *pfn = note(*pfn, symbol, true);
    return r;
}

static CUresult resolve_v1(const char *symbol, void **pfn, int version, cuuint64_t flags)
{
    __atomic_fetch_add(&resolvers[0]->n_calls, 1, __ATOMIC_RELAXED);
    __typeof__(cuGetProcAddress) *real = (__typeof__(cuGetProcAddress) *)resolvers[0]->target;
    return resolved(real(symbol, pfn, version, flags), symbol, pfn);
}

static CUresult resolve_v2(const char *symbol, void **pfn, int version, cuuint64_t flags,
                           CUdriverProcAddressQueryResult *status)
{
    __atomic_fetch_add(&resolvers[1]->n_calls, 1, __ATOMIC_RELAXED);
    __typeof__(cuGetProcAddress_v2) *real = (__typeof__(cuGetProcAddress_v2) *)resolvers[1]->target;
    return resolved(real(symbol, pfn, version, flags, status), symbol, pfn);
}

/* As preload/hook/hook.c has it: @answer and true, or false where the next dlsym() must be jumped to. */
bool dlsym_route(void *handle, const char *name, void **answer)
{
    if (!dlsym_real)
        dlsym_real = next_dlsym();
    if (!dlsym_real || !name || strncmp(name, "cu", 2) || !isupper((unsigned char)name[2]) ||
        handle == RTLD_DEFAULT || handle == RTLD_NEXT)
        return false;
    void *found = dlsym_real(handle, name);
    if (!found || !is_function_of_driver(found))
        return false;
    *answer = note(found, name, false);
    return true;
}

/* ------------------------------------------------------------------ the report */

__attribute__((constructor)) static void begin(void)
{
    first_pid = getpid();
}

__attribute__((destructor)) static void report(void)
{
    const char *path = getenv("DMI_TEST_WITNESS");
    char program[256] = "";
    int fd = path && n_slots && getpid() == first_pid
                 ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600)
                 : -1;
    FILE *file = fd >= 0 ? fdopen(fd, "a") : NULL;
    if (!file)
        return;
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    fprintf(file, "{\"pid\": %d, \"program\": \"%s\", \"functions\": [", (int)first_pid,
            n > 0 && !strpbrk(program, "\"\\") ? program : "");
    for (unsigned i = 0; i < n_slots; i++)
        fprintf(file,
                "%s{\"name\": \"%s\", \"by_dlsym\": %u, \"by_resolver\": %u, \"of\": \"%s\", "
                "\"calls\": %llu}",
                i ? ", " : "", witness_slots[i].name, witness_slots[i].by_dlsym,
                witness_slots[i].by_resolver, file_of(witness_slots[i].target, NULL),
                (unsigned long long)__atomic_load_n(&witness_slots[i].n_calls, __ATOMIC_RELAXED));
    fputs("]}\n", file);
    fclose(file);
}
