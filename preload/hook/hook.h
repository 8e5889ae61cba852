/* SPDX-License-Identifier: Apache-2.0 */
/* Interposition: which of the driver's entry points we stand in front of. All functions: any thread, any time. */
#pragma once

#include "preload/nvtx/abi.h"

#include <stdbool.h>

/* The wrapper for a real entry point, or @fn itself if it is none that we stand in front of. */
void *hook_wrap(void *fn);

/* Is there a spec that may name NVTX ranges? Written by the library's constructor. */
extern __attribute__((visibility("hidden"))) bool hook_wants_nvtx;
/* The NVTX tool that the calling thread has looked up, and that we stand before; NULL: none. */
extern __thread __attribute__((tls_model("initial-exec"), visibility("hidden")))
nvtx_initialize *hook_nvtx_tool;

/* What NVTX calls in a library that it has opened. @get: where its tables are. Return: 0: nothing was attached. */
__attribute__((visibility("default"))) int InitializeInjectionNvtx2(nvtx_get_export_table *get);
