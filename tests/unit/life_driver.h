/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model of what the driver does with contexts, for tests of their capture contexts: primary ones with references, others
 * that are attached, handles that come back at once, memory that ends with its context. One lock, as if the device did
 * everything at once. Thread: any, unless a function says otherwise.
 */
#ifndef TESTS_UNIT_LIFE_DRIVER_H
#define TESTS_UNIT_LIFE_DRIVER_H

#include "preload/base/cuda_abi.h"
#include "preload/context/context.h"

#include <stdbool.h>
#include <stdint.h>

#define LIFE_DEVICES  2
#define LIFE_CONTEXTS 8 /* handles for contexts beside as many primary ones as devices */

/* Puts the model in the driver's place, all of it new. @with_ids: it has cuCtxGetId, as drivers have from 12.0 on. */
void life_driver_install(bool with_ids);

/* How often a thread of ours used a context that had ended, or a launch the ring of another context than its own. */
uint64_t life_driver_misuses(void);

/* A kernel's write of @n_bytes at @offset of the ring, and its descriptor. Return: false: the context has ended. */
bool life_driver_write(const struct context *context, const struct dmi_desc *record);
bool life_driver_publish(const struct context *context, uint64_t index,
                         const struct dmi_desc *record);

/*
 * @fn runs before a call of the driver returns, which has done its work by then: the call after the next @n calls that begin or end
 * a context, or ask for a primary one's state. Thread: the only one of the application, but for those that @fn creates.
 */
void life_driver_before_return(int n, void (*fn)(void));

/* What a kernel of launch @seq writes. */
unsigned char life_driver_byte(uint64_t seq, uint64_t i);

/* The calling thread's current context, NULL: there is none, or it has ended. @primary: of which device it is the primary one; -1: of none. */
CUcontext life_driver_current(CUdevice *primary);

/* References to the primary context that the driver knows. */
uint32_t life_driver_references(CUdevice device);

#endif
