/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/function/functions.h"

#include "core/atomic.h"
#include "core/cleanup.h"
#include "core/locked.h"
#include "preload/base/driver.h"
#include "preload/base/handles.h"
#include "preload/base/stream.h"
#include "preload/function/naming.h"
#include "preload/function/strangers.h"
#include "preload/session/session.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* What is known of a handle beside the answer; read and freed under the lock. */
struct known {
    const void *owner;
    enum func_type type;
    bool nameless; /* the driver did not tell its name: it is looked up again with one */
    char *name;    /* where it is needed again and the driver cannot be asked for it; else NULL */
};

static struct handles answers =
    HANDLES_INIT; /* handle -> const struct func, which is never freed: launches read it */
static struct handles table = HANDLES_INIT;           /* handle -> struct known */
static struct handles library_modules = HANDLES_INIT; /* module -> its library */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool any_matched;

const struct func func_unmatched = { .match.kind = -1 };

const struct func *functions_find(const void *handle)
{
    return handles_find(&answers, handle);
}

/* An answer for keep(). */
struct func_answer {
    const struct func *func;
    const void *owner;
    enum func_type type;
    bool nameless;
    char *name; /* moved to the table if it is needed again */
};

/* Before CUDA 12.3 drivers do not name functions. */
static bool driver_names(enum func_type type)
{
    return type == FUNC_KERNEL ? driver_table.cuKernelGetName != NULL
                               : driver_table.cuFuncGetName != NULL;
}

/* Under the lock. */
static void fill(struct known *k, struct func_answer *answer)
{
    free(k->name);
    *k = (struct known){ .owner = answer->owner, .type = answer->type };
    k->nameless = answer->nameless;
    if (!driver_names(answer->type))
        k->name = steal_ptr(answer->name);
}

/* Without memory the handle stays unknown: slow but right. */
static void keep(const void *handle, struct func_answer *answer)
{
    pthread_mutex_lock(&lock);
    struct known *k = handles_find(&table, handle);
    if (!k && (k = calloc(1, sizeof *k)) && handles_set(&table, handle, k) == k) {
        free(k);
        k = NULL;
    }
    if (k) {
        fill(k, answer);
        handles_set(&answers, handle, (void *)answer->func);
    }
    pthread_mutex_unlock(&lock);
}

/* The next launch looks @handle up again. Under the lock. */
static void forget_answer(const void *handle)
{
    handles_set(&answers, handle, NULL);
}

/* Each call is for one kind of handle: drivers read the handle as what the call says it is. */
static char *name_from_driver(const void *handle, enum func_type type)
{
    const char *name = NULL;
    CUresult r = CUDA_ERROR_NOT_SUPPORTED;
    /* twice: what is known of a handle is kept for good */
    for (int i = 0; i < 2 && r != CUDA_SUCCESS; i++) {
        if (type == FUNC_KERNEL && driver_table.cuKernelGetName)
            r = driver_table.cuKernelGetName(&name, (CUkernel)handle);
        else if (type == FUNC_FUNCTION && driver_table.cuFuncGetName)
            r = driver_table.cuFuncGetName(&name, (CUfunction)handle);
    }
    return r == CUDA_SUCCESS && name ? strdup(name) : NULL;
}

/* Some pattern is of this kernel's name. Where any kernel may be a site, in a range, most never are. */
static bool is_named(const struct spec *spec, const struct spec_match *match)
{
    bool named = match->n_sites || match->kind >= 0;
    for (uint32_t i = 0; i < match->n_ranged && !named; i++)
        named = spec->sites[match->ranged[i]].about.kernel;
    return named;
}

static const struct func *resolve(const struct spec *spec, const void *handle,
                                  const struct func_answer *a)
{
    struct spec_match match;
    if (!naming_match(spec, a->name, &match))
        return &func_unmatched;
    struct func *func = calloc(1, sizeof *func);
    char *name = strdup(a->name);
    if (!func || !name) {
        for (uint32_t i = 0; i < match.n_sites; i++)
            session_give_up(match.sites[i], "no memory for kernel %s: switched off", a->name);
        free(func);
        free(name);
        return &func_unmatched;
    }
    functions_expect();
    *func = (struct func){ .name = name, .match = match, .handle = handle, .type = a->type };
    if (is_named(spec, &match))
        func->layout = layouts_ask(handle, a->type);
    if (!func->layout)
        func->layout = layouts_find(a->owner, name);
    return func;
}

/* What a function of @owner ends with. */
static const void *root_of(const void *owner)
{
    const void *library = owner ? handles_find(&library_modules, owner) : NULL;
    return library ? library : owner;
}

/* @listed: the driver said that a module holds it, and nobody asked for it. */
static const struct func *add(const struct spec *spec, const void *handle, enum func_type type,
                              const char *name, const void *owner, bool listed)
{
    struct func_answer answer = { .owner = root_of(owner), .type = type };
    /* asked for again while its module lives: the same function */
    pthread_mutex_lock(&lock);
    const struct known *k = handles_find(&table, handle);
    const struct func *func = k && (!owner || k->owner == answer.owner) && !(name && k->nameless)
                                  ? functions_find(handle)
                                  : NULL;
    pthread_mutex_unlock(&lock);
    if (func == &func_unmatched && name && !listed)
        strangers_note(name);
    if (func)
        return func;
    _cleanup_(freep) char *own = name ? strdup(name) : name_from_driver(handle, type);
    if (!own && (name || driver_names(type)))
        session_give_up_all("the name of a kernel could not be had"); /* it may be any site's */
    answer.name = own;
    answer.func = own ? resolve(spec, handle, &answer) : &func_unmatched;
    answer.nameless = !own;
    func = answer.func;
    if (func == &func_unmatched && own && !listed)
        strangers_note(own);
    keep(handle, &answer);
    own = answer.name; /* NULL where the table has it */
    return func;
}

const struct func *functions_add(const struct spec *spec, const void *handle, enum func_type type,
                                 const char *name, const void *owner)
{
    return add(spec, handle, type, name, owner, false);
}

void functions_add_listed(const struct spec *spec, const void *handle, enum func_type type,
                          const void *owner)
{
    _cleanup_(freep) char *name = name_from_driver(handle, type);
    if (name)
        add(spec, handle, type, name, owner, true);
}

/* What is known of @handle; its name is to be freed. Return: false: nothing. */
static bool known_before(const void *handle, struct func_answer *a)
{
    pthread_mutex_lock(&lock);
    const struct known *k = handles_find(&table, handle);
    const struct func *func = k ? functions_find(handle) : NULL;
    const char *name = !k ? NULL : func && func != &func_unmatched ? func->name : k->name;
    *a = (struct func_answer){ .func = func, .name = name ? strdup(name) : NULL };
    if (k) {
        a->owner = k->owner;
        a->type = k->type;
    }
    pthread_mutex_unlock(&lock);
    return k != NULL;
}

void functions_add_of_kernel(const struct spec *spec, CUfunction function, CUkernel kernel)
{
    struct func_answer a;
    known_before(kernel, &a);
    _cleanup_(freep) char *name = a.name;
    functions_add(spec, function, FUNC_FUNCTION, name, a.owner);
}

/*
 * What a handle is that was looked up where the library cannot see it: of the calls for functions this one is known to
 * give an error for a kernel, where others read what is not there. Kernels stay unknown.
 */
static enum func_type kind_of(const void *handle)
{
    int value;
    if (!driver_table.cuFuncGetAttribute)
        return FUNC_UNKNOWN;
    struct stream_relaxed relaxed = stream_relax();
    CUresult r = CUDA_ERROR_UNKNOWN;
    for (int i = 0; i < 2 && r != CUDA_SUCCESS; i++) /* as name_from_driver() */
        r = driver_table.cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
                                            (CUfunction)handle);
    stream_unrelax(&relaxed);
    return r == CUDA_SUCCESS ? FUNC_FUNCTION : FUNC_UNKNOWN;
}

/* The answer for what nobody can be asked about. */
static const struct func *leave_alone(const void *handle)
{
    struct func_answer answer = { .func = &func_unmatched, .type = FUNC_UNKNOWN };
    keep(handle, &answer);
    return &func_unmatched;
}

const struct func *functions_lookup(const void *handle, enum func_type type)
{
    struct func_answer a;
    const struct func *func = functions_find(handle);
    if (func)
        return func;
    if (!handle || !(session_is_for(SESSION_RECORDING) || session_run()))
        return &func_unmatched;
    if (known_before(handle, &a))
        type = a.type;
    else if (type == FUNC_UNKNOWN)
        type = kind_of(handle);
    _cleanup_(freep) char *name = a.name;
    return type == FUNC_UNKNOWN ? leave_alone(handle)
                                : functions_add(session.spec, handle, type, name, a.owner);
}

char *functions_name(const void *handle)
{
    struct func_answer a;
    if (!known_before(handle, &a))
        a.type = kind_of(handle);
    return a.name ? a.name : name_from_driver(handle, a.type);
}

const struct params_layout *functions_layout(const struct func *func)
{
    struct func *f = (struct func *)(func->base ? func->base : func);
    struct params_layout *layout = atomic_load_acquire(&f->layout); /* of the exchange below */
    if (layout || func == &func_unmatched || atomic_load_relaxed(&f->asked))
        return layout;
    struct params_layout *fresh = layouts_ask(f->handle, f->type);
    if (!fresh)
        layouts_driver_fails();
    else if (!atomic_cas_acq_rel(&f->layout, &layout, fresh))
        free(fresh); /* another thread was first */
    atomic_store_relaxed(&f->asked, 1);
    return atomic_load_acquire(&f->layout);
}

/* ------------------------------------------------------------------------- ends */

void functions_note_module(const void *module, const void *library)
{
    if (library || handles_find(&library_modules, module))
        handles_set(&library_modules, module, (void *)library);
}

static void drop_module_of(const void *module, void *value, void *library)
{
    if (value == library)
        handles_set(&library_modules, module, NULL);
}

static void drop_if_of(const void *handle, void *value, void *owner)
{
    struct known *k = value;
    if (k->owner && k->owner != owner)
        return;
    forget_answer(handle);
    if (!k->owner)
        return; /* it may be alive, and its kind is known */
    handles_set(&table, handle, NULL);
    free(k->name);
    free(k);
}

void functions_drop_owner(const void *owner)
{
    UNDER(&lock, handles_each(&table, drop_if_of, (void *)owner));
    handles_each(&library_modules, drop_module_of, (void *)owner);
    layouts_drop(owner);
}

static void drop_if_function(const void *handle, void *value, void *ctx)
{
    const struct known *k = value;
    (void)ctx;
    if (k->type == FUNC_FUNCTION)
        forget_answer(handle);
}

void functions_drop_functions(void)
{
    UNDER(&lock, handles_each(&table, drop_if_function, NULL));
}

struct of_site {
    uint32_t site;
    const char *name;
};

static void name_if_of_site(const void *handle, void *value, void *ctx)
{
    const struct func *func = value;
    struct of_site *search = ctx;
    (void)handle;
    for (uint32_t i = 0; i < func->match.n_sites; i++)
        if (func->match.sites[i] == search->site)
            search->name = func->name;
    for (uint32_t i = 0; i < func->match.n_ranged; i++)
        if (func->match.ranged[i] == search->site)
            search->name = func->name;
}

const char *functions_of_site(uint32_t site)
{
    struct of_site search = { .site = site };
    handles_each(&answers, name_if_of_site, &search);
    return search.name;
}

void functions_expect(void)
{
    atomic_store_release(&any_matched, true); /* to functions_matched() */
}

bool functions_matched(void)
{
    return atomic_load_acquire(&any_matched); /* of resolve() */
}

void functions_give_up(const struct func *func, const char *why)
{
    for (uint32_t i = 0; i < func->match.n_sites; i++)
        session_give_up(func->match.sites[i], "kernel %s %s: switched off", func->name, why);
}

void functions_reset(void)
{
    any_matched = false;
    /* another thread of the parent may have held the locks at fork; the table is left mapped: untouched pages */
    struct handles fresh = HANDLES_INIT;
    pthread_mutex_t unlocked = PTHREAD_MUTEX_INITIALIZER;
    answers = fresh;
    table = fresh;
    library_modules = fresh;
    layouts_reset();
    strangers_reset();
    lock = unlocked;
}
