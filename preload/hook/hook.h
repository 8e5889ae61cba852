/* SPDX-License-Identifier: Apache-2.0 */
/* Interposition: which of the driver's entry points we stand in front of. All functions: any thread, any time. */
#ifndef PRELOAD_HOOK_HOOK_H
#define PRELOAD_HOOK_HOOK_H

/* The wrapper for a real entry point, or @fn itself if it is none that we stand in front of. */
void *hook_wrap(void *fn);

#endif
