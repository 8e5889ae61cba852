/* SPDX-License-Identifier: Apache-2.0 */
/* NVTX ranges that threads push and pop, as ranges of the trace. Those that one thread starts and any thread ends are not taken. */
#pragma once

/* They are followed from here on, where a trace is wanted: before NVTX asks who wants them. Thread: one at a time. */
void nvtx_ranges_use(void);
