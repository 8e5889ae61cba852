/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/base/functions.h"

#include "core/atomic.h"
#include "core/cleanup.h"
#include "preload/base/driver.h"
#include "preload/base/handles.h"
#include "preload/base/session.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* What is kept for a handle: made once, never freed, filled anew when the handle comes back. */
struct known {
    const struct func
        *func; /* NULL: its module was unloaded. Released by keep(), acquired by functions_find() */
    const void *owner;   /* under the lock */
    enum func_type type; /* under the lock */
};

static struct handles table = HANDLES_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

const struct func func_unmatched = { .match.kind = -1 };

const struct func *functions_find(const void *handle)
{
    struct known *k = handles_find(&table, handle);
    return k ? atomic_load_acquire(&k->func) : NULL; /* of keep() */
}

/* Where the table is full the handle stays unknown: slow but right. */
static void keep(const void *handle, const struct func *func, const void *owner,
                 enum func_type type)
{
    pthread_mutex_lock(&lock);
    struct known *k = handles_find(&table, handle);
    if (!k && (k = calloc(1, sizeof *k)) && handles_set(&table, handle, k) == k) {
        free(k);
        k = NULL;
    }
    if (k) {
        k->owner = owner;
        k->type = type;
        atomic_store_release(&k->func, func); /* to functions_find() */
    }
    pthread_mutex_unlock(&lock);
}

static char *name_from_driver(const void *handle, enum func_type type)
{
    const char *name = NULL;
    bool known = false;
    /* the two may not be confused: drivers read the handle as what the call says it is */
    if (type == FUNC_KERNEL && driver_table.cuKernelGetName)
        known = driver_table.cuKernelGetName(&name, (CUkernel)handle) == CUDA_SUCCESS;
    else if (type == FUNC_FUNCTION && driver_table.cuFuncGetName)
        known = driver_table.cuFuncGetName(&name, (CUfunction)handle) == CUDA_SUCCESS;
    return known && name ? strdup(name) : NULL;
}

static char *demangle(const char *name)
{
    typedef char *demangle_fn(const char *, char *, size_t *, int *);
    if (strncmp(name, "_Z", 2))
        return NULL;
    /* the application's own C++ runtime, if it has one: the library may need none */
    demangle_fn *fn = (demangle_fn *)driver_real_dlsym(RTLD_DEFAULT, "__cxa_demangle");
    int status = 0;
    return fn ? fn(name, NULL, NULL, &status) : NULL;
}

/* Before CUDA 12.4 the driver has no such call. */
static bool has_param_info(enum func_type type)
{
    return type == FUNC_KERNEL ? driver_table.cuKernelGetParamInfo != NULL
                               : driver_table.cuFuncGetParamInfo != NULL;
}

static CUresult param_info(const void *handle, enum func_type type, size_t i, size_t *offset,
                           size_t *size)
{
    return type == FUNC_KERNEL
               ? driver_table.cuKernelGetParamInfo((CUkernel)handle, i, offset, size)
               : driver_table.cuFuncGetParamInfo((CUfunction)handle, i, offset, size);
}

static struct params_layout *layout_from_driver(const void *handle, enum func_type type)
{
    _cleanup_(freep) struct params_layout *layout =
        calloc(1, sizeof *layout + FUNCTIONS_MAX_PARAMS * sizeof layout->at[0]);
    if (!layout || !has_param_info(type))
        return NULL;
    size_t offset, size;
    CUresult r = CUDA_SUCCESS;
    while (layout->n < FUNCTIONS_MAX_PARAMS) {
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

const struct func *functions_add(const struct spec *spec, const void *handle, enum func_type type,
                                 const char *name, const void *owner)
{
    /* asked for again while its module lives: the same function */
    pthread_mutex_lock(&lock);
    const struct known *k = handles_find(&table, handle);
    const struct func *func = k && (!owner || k->owner == owner) ? k->func : NULL;
    pthread_mutex_unlock(&lock);
    if (func)
        return func;
    func = resolve(spec, handle, type, name);
    keep(handle, func, owner, type);
    return func;
}

const struct func *functions_lookup(CUfunction handle)
{
    const struct func *func = functions_find(handle);
    if (func)
        return func;
    return session_run() ? functions_add(session.spec, handle, FUNC_FUNCTION, NULL, NULL)
                         : &func_unmatched;
}

static void drop_if_of(const void *handle, void *value, void *owner)
{
    struct known *k = value;
    (void)handle;
    if (k->owner == owner || !k->owner)
        atomic_store_release(&k->func, (const struct func *)NULL); /* to functions_find() */
}

void functions_drop_owner(const void *owner)
{
    pthread_mutex_lock(&lock);
    handles_each(&table, drop_if_of, (void *)owner);
    pthread_mutex_unlock(&lock);
}

static void drop_if_function(const void *handle, void *value, void *ctx)
{
    struct known *k = value;
    (void)handle;
    (void)ctx;
    if (k->type == FUNC_FUNCTION)
        atomic_store_release(&k->func, (const struct func *)NULL); /* to functions_find() */
}

void functions_drop_functions(void)
{
    pthread_mutex_lock(&lock);
    handles_each(&table, drop_if_function, NULL);
    pthread_mutex_unlock(&lock);
}

const void *functions_owner(const void *handle)
{
    pthread_mutex_lock(&lock);
    const struct known *k = handles_find(&table, handle);
    const void *owner = k && k->func ? k->owner : NULL;
    pthread_mutex_unlock(&lock);
    return owner;
}

void functions_give_up(const struct func *func, const char *why)
{
    for (uint32_t i = 0; i < func->match.n_sites; i++)
        session_give_up(func->match.sites[i], "kernel %s %s: switched off", func->name, why);
}

void functions_reset(void)
{
    /* another thread of the parent may have held the locks at fork; the table is left mapped: untouched pages */
    struct handles fresh = HANDLES_INIT;
    pthread_mutex_t unlocked = PTHREAD_MUTEX_INITIALIZER;
    table = fresh;
    lock = unlocked;
}
