/* SPDX-License-Identifier: Apache-2.0 */
/*
 * register.c - fat binaries, kernels and variables that a program registers when it is loaded, and where they are looked up
 *
 * PyTorch registers some 100,000 kernels in 444 fat binaries while it is loaded: each is an entry of a hash table and nothing else.
 * A fat binary goes to the driver when something in it is first wanted. Where it is machine code alone, an own kernel is asked for
 * by name (../operators/operators.h).
 */
#include "runtime.h"
#include "../operators/operators.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* What __cudaRegisterFatBinary() gives a handle for. */
struct fatbin {
    const void *image;
    pthread_mutex_t lock; /* all below */
    bool wanted;          /* before: it was given to the driver */
    cudaError_t result;
    CUlibrary library;
};

struct symbol {
    const void *host; /* the stub function, or a variable's shadow */
    const char *name; /* as the device has it; the program's */
    struct fatbin *fatbin;
    bool is_variable;
    CUkernel kernel; /* once it was wanted; under its fat binary's lock */
};

/* Images of own kernels that were loaded. */
struct own {
    struct own *next;
    const void *image;
    CUlibrary library;
};

static struct own *owns;
static pthread_mutex_t own_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- the table ---- */

enum { CHUNK = 4096, FIRST_SLOTS = 1 << 12 };

static struct {
    pthread_mutex_t lock; /* all below */
    struct slot {
        const void *key; /* a symbol's host address, a CUkernel that was handed out, or a symbol */
        struct symbol *symbol;
    } * slots;
    size_t n_slots, n_used;
    struct symbol *chunk; /* where new ones are taken from */
    size_t n_left;
} table = { .lock = PTHREAD_MUTEX_INITIALIZER };

static size_t hash(const void *key)
{
    return (size_t)(((uintptr_t)key >> 3) * 0x9e3779b97f4a7c15ull >> 20);
}

/* The slot that has @key, or the empty one where it belongs; lock held, and there are slots. */
static struct slot *slot_of(const void *key)
{
    size_t i = hash(key);

    while (table.slots[i & (table.n_slots - 1)].key &&
           table.slots[i & (table.n_slots - 1)].key != key)
        i++;
    return &table.slots[i & (table.n_slots - 1)];
}

/* Room for another key; lock held. Return: false without memory. */
static bool grow(void)
{
    struct slot *old = table.slots;
    size_t n_old = table.n_slots;
    struct slot *grown;

    if (table.n_used * 2 < n_old)
        return true;
    grown = calloc(n_old ? n_old * 2 : FIRST_SLOTS, sizeof(*grown));
    if (!grown)
        return false;
    table.slots = grown;
    table.n_slots = n_old ? n_old * 2 : FIRST_SLOTS;
    for (size_t i = 0; i < n_old; i++) {
        if (old[i].key)
            *slot_of(old[i].key) = old[i];
    }
    free(old);
    return true;
}

/* Lock held. */
static void put(const void *key, struct symbol *symbol)
{
    struct slot *slot;

    if (!grow())
        return;
    slot = slot_of(key);
    table.n_used += !slot->key;
    *slot = (struct slot){ key, symbol };
}

/* Lock held. */
static struct symbol *new_symbol(void)
{
    if (!table.n_left) {
        table.chunk = calloc(CHUNK, sizeof(*table.chunk));
        table.n_left = table.chunk ? CHUNK : 0;
    }
    return table.n_left ? &table.chunk[CHUNK - table.n_left--] : NULL;
}

static void add(struct fatbin *fatbin, const void *host, const char *name, bool is_variable)
{
    struct symbol *symbol;

    pthread_mutex_lock(&table.lock);
    symbol = new_symbol();
    if (symbol) {
        *symbol = (struct symbol){
            .host = host, .name = name, .fatbin = fatbin, .is_variable = is_variable
        };
        put(host, symbol);
    }
    pthread_mutex_unlock(&table.lock);
}

static void alias(const void *key, struct symbol *symbol)
{
    pthread_mutex_lock(&table.lock);
    put(key, symbol);
    pthread_mutex_unlock(&table.lock);
}

struct symbol *symbol_of(const void *host)
{
    struct symbol *symbol = NULL;

    pthread_mutex_lock(&table.lock);
    if (host && table.n_slots)
        symbol = slot_of(host)->symbol;
    pthread_mutex_unlock(&table.lock);
    return symbol && symbol->fatbin->image ? symbol : NULL;
}

/* ---- libraries ---- */

static cudaError_t load(CUlibrary *library, const void *image)
{
    return DRIVER(cuLibraryLoadData, library, image, NULL, NULL, 0, NULL, NULL, 0);
}

/* The library of a fat binary; its lock is held. */
static cudaError_t library_of(struct fatbin *fatbin)
{
    if (!fatbin->wanted) {
        fatbin->wanted = true;
        fatbin->result = load(&fatbin->library, fatbin->image);
    }
    return fatbin->result;
}

static cudaError_t own_library(const void *image, CUlibrary *library)
{
    struct own *own;
    cudaError_t res = cudaSuccess;

    pthread_mutex_lock(&own_lock);
    for (own = owns; own && own->image != image; own = own->next)
        ;
    if (!own) {
        own = calloc(1, sizeof(*own));
        res = own ? load(&own->library, image) : cudaErrorMemoryAllocation;
        if (res == cudaSuccess) {
            own->image = image;
            own->next = owns;
            owns = own;
        } else {
            free(own);
        }
    }
    if (res == cudaSuccess)
        *library = own->library;
    pthread_mutex_unlock(&own_lock);
    return res;
}

/* A fat binary without PTX: an own kernel, if there is one. */
static cudaError_t own_kernel(const char *mangled, CUkernel *kernel)
{
    struct operator found;
    CUlibrary library = NULL;
    cudaError_t res;

    if (operators_find(mangled, &found))
        return runtime_lacks_kernel(mangled);
    res = own_library(found.image, &library);
    return res == cudaSuccess ? DRIVER(cuLibraryGetKernel, kernel, library, found.entry) : res;
}

/* The kernel, looked up for the first time; its fat binary's lock is held. */
static cudaError_t find_kernel(const struct symbol *symbol, CUkernel *kernel)
{
    cudaError_t res = library_of(symbol->fatbin);

    if (res == cudaErrorNoKernelImageForDevice)
        return own_kernel(symbol->name, kernel);
    if (res == cudaSuccess)
        res = DRIVER(cuLibraryGetKernel, kernel, symbol->fatbin->library, symbol->name);
    return res == cudaErrorSymbolNotFound ? cudaErrorInvalidDeviceFunction : res;
}

cudaError_t symbol_kernel(struct symbol *symbol, CUkernel *kernel)
{
    cudaError_t res = cudaSuccess;
    bool is_new;

    if (!symbol || symbol->is_variable)
        return cudaErrorInvalidDeviceFunction;
    pthread_mutex_lock(&symbol->fatbin->lock);
    is_new = !symbol->kernel;
    if (is_new)
        res = find_kernel(symbol, &symbol->kernel);
    if (res != cudaSuccess)
        symbol->kernel = NULL;
    *kernel = symbol->kernel;
    pthread_mutex_unlock(&symbol->fatbin->lock);
    if (res == cudaSuccess && is_new)
        alias(*kernel, symbol);
    return res;
}

cudaError_t symbol_variable(const struct symbol *symbol, CUdeviceptr *address, size_t *size)
{
    cudaError_t res;

    if (!symbol || !symbol->is_variable)
        return cudaErrorInvalidSymbol;
    pthread_mutex_lock(&symbol->fatbin->lock);
    res = library_of(symbol->fatbin);
    pthread_mutex_unlock(&symbol->fatbin->lock);
    if (res == cudaErrorNoKernelImageForDevice)
        return runtime_lacks_kernel(symbol->name);
    return res == cudaSuccess
               ? DRIVER(cuLibraryGetGlobal, address, size, symbol->fatbin->library, symbol->name)
               : res;
}

/* ---- what generated code calls, as nvcc's own headers declare it ---- */

EXPORT void **__cudaRegisterFatBinary(void *fatCubin);
EXPORT void **__cudaRegisterFatBinary(void *fatCubin)
{
    struct fatbin *fatbin = calloc(1, sizeof(*fatbin));

    if (!fatbin)
        return NULL;
    fatbin->image = fatCubin;
    pthread_mutex_init(&fatbin->lock, NULL);
    return (void **)fatbin;
}

EXPORT void __cudaRegisterFatBinaryEnd(void **handle);
EXPORT void __cudaRegisterFatBinaryEnd(void **handle)
{
    (void)handle;
}

EXPORT void __cudaUnregisterFatBinary(void **handle);
EXPORT void __cudaUnregisterFatBinary(void **handle)
{
    struct fatbin *fatbin = (struct fatbin *)handle;

    if (!fatbin)
        return;
    pthread_mutex_lock(&fatbin->lock);
    fatbin->image = NULL; /* its symbols are of no use any more */
    if (fatbin->wanted && fatbin->result == cudaSuccess)
        DRIVER(cuLibraryUnload, fatbin->library);
    pthread_mutex_unlock(&fatbin->lock);
}

EXPORT void __cudaRegisterFunction(void **handle, const char *hostFun, char *deviceFun,
                                   const char *deviceName, int thread_limit, void *tid, void *bid,
                                   void *bDim, void *gDim, int *wSize);
EXPORT void __cudaRegisterFunction(void **handle, const char *hostFun, char *deviceFun,
                                   const char *deviceName, int thread_limit, void *tid, void *bid,
                                   void *bDim, void *gDim, int *wSize)
{
    (void)deviceFun;
    (void)thread_limit;
    (void)tid;
    (void)bid;
    (void)bDim;
    (void)gDim;
    (void)wSize;
    if (handle)
        add((struct fatbin *)handle, hostFun, deviceName, false);
}

EXPORT void __cudaRegisterVar(void **handle, char *hostVar, char *deviceAddress,
                              const char *deviceName, int ext, size_t size, int constant,
                              int global);
EXPORT void __cudaRegisterVar(void **handle, char *hostVar, char *deviceAddress,
                              const char *deviceName, int ext, size_t size, int constant,
                              int global)
{
    (void)deviceAddress;
    (void)ext;
    (void)size;
    (void)constant;
    (void)global;
    if (handle)
        add((struct fatbin *)handle, hostVar, deviceName, true);
}

EXPORT void __cudaRegisterManagedVar(void **handle, void **hostVarPtrAddress, char *deviceAddress,
                                     const char *deviceName, int ext, size_t size, int constant,
                                     int global);
EXPORT void __cudaRegisterManagedVar(void **handle, void **hostVarPtrAddress, char *deviceAddress,
                                     const char *deviceName, int ext, size_t size, int constant,
                                     int global)
{
    (void)handle;
    (void)hostVarPtrAddress;
    (void)deviceAddress;
    (void)deviceName;
    (void)ext;
    (void)size;
    (void)constant;
    (void)global;
    runtime_lacks("__cudaRegisterManagedVar");
}

EXPORT char __cudaInitModule(void **handle);
EXPORT char __cudaInitModule(void **handle)
{
    (void)handle;
    return 1;
}

/* ---- handles of kernels ---- */

cudaError_t rt_cudaGetKernel(cudaKernel_t *kernelPtr, const void *entryFuncAddr)
{
    if (!kernelPtr)
        return cudaErrorInvalidValue;
    return symbol_kernel(symbol_of(entryFuncAddr), kernelPtr);
}

/*
 * Generated code asks once for each kernel, looks at no error and launches what it was given. So what has no kernel gets the symbol
 * itself as a handle: its launch then fails by name.
 */
EXPORT cudaError_t __cudaGetKernel(cudaKernel_t *kernelPtr, const void *entryFuncAddr);
EXPORT cudaError_t __cudaGetKernel(cudaKernel_t *kernelPtr, const void *entryFuncAddr)
{
    struct symbol *symbol = symbol_of(entryFuncAddr);
    CUkernel kernel = NULL;

    if (!kernelPtr)
        return runtime_leave(cudaErrorInvalidValue);
    if (!symbol)
        return runtime_leave(cudaErrorInvalidDeviceFunction);
    if (runtime_enter(DRIVER_LEGACY, BEFORE_DRIVER) == cudaSuccess &&
        symbol_kernel(symbol, &kernel) == cudaSuccess) {
        *kernelPtr = kernel;
        return cudaSuccess;
    }
    alias(symbol, symbol);
    *kernelPtr = (cudaKernel_t)(void *)symbol;
    return cudaSuccess;
}
