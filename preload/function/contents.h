/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a module or library holds, looked at while the application loads it: loading waits for the device anyway, and so
 * may what is asked of the kernels that the spec names. Looking them up later then asks nothing.
 */
#pragma once

#include "preload/function/functions.h"

/*
 * The functions of the module, or the kernels of the library @owner, that the spec names are known from here on. Where
 * the driver does not list them (before CUDA 12.4), the image has said whether there are any (layouts_note()). Thread:
 * any that entered, in a call that loads. @type: FUNC_FUNCTION or FUNC_KERNEL.
 */
void contents_of(const void *owner, enum func_type type);

/* How many functions the module, or kernels the library @owner holds; 0: the driver does not say. Thread: any. */
unsigned contents_count(const void *owner, enum func_type type);
