/* SPDX-License-Identifier: Apache-2.0 */
/* The two sides that a capture context may have: side_ops.h. */
#ifndef PRELOAD_CONTEXT_SIDE_H
#define PRELOAD_CONTEXT_SIDE_H

#include "preload/context/side_ops.h"

extern const struct context_side side_device, side_host;

#endif
