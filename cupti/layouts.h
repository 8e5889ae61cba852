/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many bytes CUPTI's activity records have, by version. What is read of them lies at the same place in all versions from 11.7 on.
 * Pure: any thread. Source: cupti_activity.h of the toolkits 11.8 to 13.5; docs/trace.md.
 */
#pragma once

#include <stdint.h>

/* enum CUpti_ActivityKind: those that the tracer asks for. */
enum layouts_kind {
    LAYOUTS_COPY = 1,
    LAYOUTS_SET = 2,
    LAYOUTS_KERNEL = 10,
    LAYOUTS_COPY_PEER = 22,
};

/* Versions are those of cuptiGetVersion: 18 is CUDA 11.8, 26 is 12.8, from 13.0 on 10000 * major + 100 * minor. */
#define LAYOUTS_FIRST 18u
#define LAYOUTS_LAST  130599u

/* Bytes of a record of @kind; 0: this table does not know the version, or the kind. */
uint32_t layouts_bytes(uint32_t version, uint32_t kind);

/* From this many bytes on a kernel's record says at this place which node its node was instantiated from. Source: CUpti_ActivityKernel13. */
#define LAYOUTS_WITH_SOURCE 248u
#define LAYOUTS_SOURCE      240u

/* Bytes of a record of @kind that are read, in every version; 0: nothing of the kind is. */
uint32_t layouts_prefix(uint32_t kind);
