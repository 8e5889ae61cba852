/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/funcs.h"

#include "core/atomic.h"
#include "core/cleanup.h"
#include "preload/hooks.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

/*
 * Open addressing, fixed size: 64 Ki entries hold far more kernels than any engine launches, the
 * pages are only touched where entries fall, and a table that never moves needs no reclamation.
 */
#define TABLE_BITS 16
#define TABLE_SIZE (1u << TABLE_BITS)
#define MAX_ENTRIES (TABLE_SIZE / 2)
#define MAX_PROBES 64

struct entry {
    const void *handle;      /* released by add_entry(), acquired by find_entry(); never removed */
    const struct func *func; /* NULL: the handle's module was unloaded; released and acquired alike */
    const void *owner;       /* under the lock */
    enum func_type type;     /* under the lock */
};

static struct {
    struct entry *entries; /* released by table_get(), acquired by find_entry() */
    uint32_t n_entries;
    pthread_mutex_t lock; /* writers only */
} table = {.lock = PTHREAD_MUTEX_INITIALIZER};

const struct func func_unmatched = {.match.kind = -1};

static uint32_t slot_of(const void *handle)
{
    /* Fibonacci hashing: handles are pointers, their low bits say little */
    return (uint32_t)(((uintptr_t)handle * 0x9E3779B97F4A7C15u) >> (64 - TABLE_BITS));
}

static struct entry *find_entry(struct entry *entries, const void *handle)
{
    uint32_t slot = slot_of(handle);
    for (uint32_t probe = 0; probe < MAX_PROBES; probe++) {
        struct entry *e = &entries[(slot + probe) & (TABLE_SIZE - 1)];
        const void *there = atomic_load_acquire(&e->handle); /* of add_entry() */
        if (there == handle)
            return e;
        if (!there)
            return NULL;
    }
    return NULL;
}

const struct func *funcs_find(const void *handle)
{
    struct entry *entries = atomic_load_acquire(&table.entries); /* of table_get() */
    if (!entries)
        return NULL;
    struct entry *e = find_entry(entries, handle);
    return e ? atomic_load_acquire(&e->func) : NULL; /* of add_entry() */
}

/* Under the lock. */
static struct entry *table_get(void)
{
    if (!table.entries) {
        void *mem = mmap(NULL, TABLE_SIZE * sizeof(struct entry), PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (mem == MAP_FAILED)
            return NULL;
        atomic_store_release(&table.entries, (struct entry *)mem); /* to funcs_find() */
    }
    return table.entries;
}

/* Under the lock. NULL where the table is full: that handle stays uncached, slow but right. */
static struct entry *entry_for(const void *handle)
{
    struct entry *entries = table_get();
    if (!entries)
        return NULL;
    struct entry *e = find_entry(entries, handle);
    if (e || table.n_entries >= MAX_ENTRIES)
        return e;
    uint32_t slot = slot_of(handle);
    for (uint32_t probe = 0; probe < MAX_PROBES; probe++) {
        e = &entries[(slot + probe) & (TABLE_SIZE - 1)];
        if (!e->handle) {
            table.n_entries++;
            return e;
        }
    }
    return NULL;
}

static void add_entry(const void *handle, const struct func *func, const void *owner,
                      enum func_type type)
{
    pthread_mutex_lock(&table.lock);
    struct entry *e = entry_for(handle);
    if (e) {
        e->owner = owner;
        e->type = type;
        atomic_store_release(&e->func, func);     /* to funcs_find() */
        atomic_store_release(&e->handle, handle); /* to find_entry() */
    }
    pthread_mutex_unlock(&table.lock);
}

static char *name_from_driver(const void *handle, enum func_type type)
{
    const char *name = NULL;
    CUresult r = CUDA_ERROR_NOT_FOUND;
    /* the two may not be confused: drivers read the handle as what the call says it is */
    if (type == FUNC_KERNEL && driver_table.cuKernelGetName)
        r = driver_table.cuKernelGetName(&name, (CUkernel)handle);
    else if (type == FUNC_FUNCTION && driver_table.cuFuncGetName)
        r = driver_table.cuFuncGetName(&name, (CUfunction)handle);
    return r == CUDA_SUCCESS && name ? strdup(name) : NULL;
}

static char *demangle(const char *name)
{
    typedef char *demangle_fn(const char *, char *, size_t *, int *);
    if (strncmp(name, "_Z", 2))
        return NULL;
    /* the host's own C++ runtime, if it has one: we may bring none */
    demangle_fn *fn = (demangle_fn *)hooks_real_dlsym(RTLD_DEFAULT, "__cxa_demangle");
    int status = 0;
    return fn ? fn(name, NULL, NULL, &status) : NULL;
}

static CUresult param_info(const void *handle, enum func_type type, size_t i, size_t *offset,
                           size_t *size)
{
    if (type == FUNC_KERNEL)
        return driver_table.cuKernelGetParamInfo
                   ? driver_table.cuKernelGetParamInfo((CUkernel)handle, i, offset, size)
                   : CUDA_ERROR_NOT_SUPPORTED;
    return driver_table.cuFuncGetParamInfo
               ? driver_table.cuFuncGetParamInfo((CUfunction)handle, i, offset, size)
               : CUDA_ERROR_NOT_SUPPORTED;
}

static struct params_layout *layout_from_driver(const void *handle, enum func_type type)
{
    _cleanup_(freep) struct params_layout *layout =
        calloc(1, sizeof *layout + PARAMS_MAX * sizeof layout->at[0]);
    if (!layout)
        return NULL;
    size_t offset, size;
    CUresult r = CUDA_SUCCESS;
    while (layout->n < PARAMS_MAX) {
        r = param_info(handle, type, layout->n, &offset, &size);
        if (r != CUDA_SUCCESS)
            break;
        layout->at[layout->n].offset = (uint32_t)offset;
        layout->at[layout->n].size = (uint32_t)size;
        layout->n++;
    }
    /* the call ends the list with INVALID_VALUE; any other error means that it does not work */
    if (r != CUDA_SUCCESS && r != CUDA_ERROR_INVALID_VALUE)
        return NULL;
    return steal_ptr(layout);
}

static const struct func *resolve(const struct spec *spec, const void *handle, enum func_type type,
                                  const char *name)
{
    _cleanup_(freep) char *own = name ? strdup(name) : name_from_driver(handle, type);
    if (!own)
        return &func_unmatched;
    _cleanup_(freep) char *demangled = demangle(own);
    struct spec_match match;
    if (!spec_match_kernel(spec, own, demangled, &match))
        return &func_unmatched;
    struct func *func = calloc(1, sizeof *func);
    if (!func)
        return &func_unmatched;
    func->match = match;
    func->layout = layout_from_driver(handle, type);
    func->name = steal_ptr(own);
    return func;
}

const struct func *funcs_add(const struct spec *spec, const void *handle, enum func_type type,
                             const char *name, const void *owner)
{
    /* asked for again while its module lives: the same function */
    pthread_mutex_lock(&table.lock);
    struct entry *e = table.entries ? find_entry(table.entries, handle) : NULL;
    const struct func *func = e && (!owner || e->owner == owner) ? e->func : NULL;
    pthread_mutex_unlock(&table.lock);
    if (func)
        return func;
    func = resolve(spec, handle, type, name);
    add_entry(handle, func, owner, type);
    return func;
}

void funcs_drop_owner(const void *owner)
{
    pthread_mutex_lock(&table.lock);
    for (uint32_t i = 0; table.entries && i < TABLE_SIZE; i++) {
        struct entry *e = &table.entries[i];
        if (e->handle && e->func && (e->owner == owner || !e->owner))
            atomic_store_release(&e->func, (const struct func *)NULL); /* to funcs_find() */
    }
    pthread_mutex_unlock(&table.lock);
}

void funcs_drop_functions(void)
{
    pthread_mutex_lock(&table.lock);
    for (uint32_t i = 0; table.entries && i < TABLE_SIZE; i++) {
        struct entry *e = &table.entries[i];
        if (e->handle && e->func && e->type == FUNC_FUNCTION)
            atomic_store_release(&e->func, (const struct func *)NULL); /* to funcs_find() */
    }
    pthread_mutex_unlock(&table.lock);
}

const void *funcs_owner(const void *handle)
{
    pthread_mutex_lock(&table.lock);
    struct entry *e = table.entries ? find_entry(table.entries, handle) : NULL;
    const void *owner = e && e->func ? e->owner : NULL;
    pthread_mutex_unlock(&table.lock);
    return owner;
}

void funcs_reset(void)
{
    pthread_mutex_t unlocked = PTHREAD_MUTEX_INITIALIZER;
    table.lock = unlocked; /* another thread of the parent may have held it at fork */
    table.entries = NULL;  /* left mapped: it is the parent's copy, pages untouched */
    table.n_entries = 0;
}
