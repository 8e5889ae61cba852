/* SPDX-License-Identifier: Apache-2.0 */
/* Steps that begin and end with NVTX ranges, where the user named some. */
#pragma once

/* Ranges are followed from here on, if the user named some: before NVTX asks who wants them. Thread: one at a time. */
void range_steps_use(void);
