/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a module or library holds, looked at while the application loads it: loading waits for the device anyway, and so
 * may what is asked of the kernels that the spec names. Looking them up later then asks nothing.
 */
#ifndef PRELOAD_BASE_CONTENTS_H
#define PRELOAD_BASE_CONTENTS_H

#include "preload/base/cuda_abi.h"

/*
 * The functions of @module, or the kernels of @library, that the spec names are known from here on. Where the driver
 * does not list them (before CUDA 12.4), the image has said whether there are any (layouts_note()). Thread: any that
 * entered, in a call that loads.
 */
void contents_of_module(CUmodule module);
void contents_of_library(CUlibrary library);

#endif
