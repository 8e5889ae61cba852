/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls of NVTX come here: they tell the consumers of the ranges (nvtx/consumers.h), and go on to the tool that would have had them without the
 * library. Each module of the application that has NVTX attaches once. Thread: any.
 */
#pragma once

#include "preload/nvtx/abi.h"

#include <stdbool.h>

/**
 * nvtx_attach() - follow the ranges of one module
 * @get: as NVTX gave it; @tool: what it would have called, NULL: nothing
 * The tool attaches first. Return: true if there is anything for NVTX to call.
 */
bool nvtx_attach(nvtx_get_export_table *get, nvtx_initialize *tool);
