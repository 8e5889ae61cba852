/* SPDX-License-Identifier: Apache-2.0 */
/*
 * runtime.h - what the files of the double of the CUDA runtime share
 *
 * A libcudart.so.13 for tests, in the place of NVIDIA's, that forwards to whatever libcuda.so.1 the process finds. README.md says
 * what it does; runtime.def holds what it does at each call. Any thread may call anything here.
 */
#ifndef STANDIN_RUNTIME_H
#define STANDIN_RUNTIME_H

#include <cuda_runtime_api.h>
#include <cuda_profiler_api.h>
#include <stdbool.h>
#include <stddef.h>

#include "runtime_calls.h"
#include "runtime_own.h"

#define EXPORT __attribute__((visibility("default")))

/* ---- the driver: driver.c ---- */

enum driver_table { DRIVER_LEGACY, DRIVER_PER_THREAD };
enum before { BEFORE_NOTHING, BEFORE_DRIVER, BEFORE_CONTEXT };

/** driver() - the driver's functions, for the default stream that this call means; a function that the driver lacks is NULL */
const struct driver_calls *driver(void);

/* A driver call of the table; its error by number. */
#define DRIVER(name, ...)                                                                          \
    ((cudaError_t)(driver()->name ? driver()->name(__VA_ARGS__)                                    \
                                  : (CUresult)cudaErrorCallRequiresNewerDriver))

/**
 * driver_boot() - find libcuda.so.1 and initialise it, once a process
 * Return: cudaSuccess; cudaErrorInsufficientDriver without a driver; what cuInit() says.
 */
cudaError_t driver_boot(void);

/** driver_symbol() - what the driver's library exports, by cuGetProcAddress(): NULL where there is none */
CUresult driver_symbol(const char *name, void **function, int version, cuuint64_t flags,
                       CUdriverProcAddressQueryResult *status);

/** driver_per_thread() - is the call that goes on on this thread one of _ptsz or _ptds? */
bool driver_per_thread(void);

/* ---- frame of every call ---- */

/** runtime_enter() - choose the driver's functions and make ready what the call wants */
cudaError_t runtime_enter(enum driver_table table, enum before before);
/** runtime_leave() - keep an error for cudaGetLastError(). Return: @res */
cudaError_t runtime_leave(cudaError_t res);

/* ---- devices: device.c ---- */

/** device_context() - the primary context of @device, which the process retains from the first time on */
cudaError_t device_context(int device, CUcontext *context);
/** device_enter() - have a context: the thread's current one, else the primary one of its device */
cudaError_t device_enter(void);
/** device_current() - the device of the context that is current; there is one */
cudaError_t device_current(CUdevice *device);

/* ---- what the double lacks: tell.c ---- */

/**
 * runtime_lacks() - tell once, on stderr and in the stand-in driver's log, that the double has no @function
 * Return: cudaErrorNotSupported
 */
cudaError_t runtime_lacks(const char *function);
/**
 * runtime_lacks_kernel() - tell once that a kernel is machine code alone and has no own kernel in its place; append its name to
 * the file that DMI_STANDIN_MISSING names
 * Return: cudaErrorNoKernelImageForDevice
 */
cudaError_t runtime_lacks_kernel(const char *mangled);

/* ---- what programs register: register.c ---- */

struct symbol;

/** symbol_of() - what was registered for @host, or what cudaGetKernel() gave a handle for; NULL: nothing */
struct symbol *symbol_of(const void *host);
/**
 * symbol_kernel() - the kernel of @symbol, whose library is loaded at the first time
 * Return: cudaSuccess; cudaErrorInvalidDeviceFunction: @symbol is NULL, a variable, or not in its library;
 * cudaErrorNoKernelImageForDevice, told: machine code alone; what the driver said.
 */
cudaError_t symbol_kernel(struct symbol *symbol, CUkernel *kernel);
/** symbol_variable() - a variable's address in the current context, and its size */
cudaError_t symbol_variable(const struct symbol *symbol, CUdeviceptr *address, size_t *size);

#endif
