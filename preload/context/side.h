/* SPDX-License-Identifier: Apache-2.0 */
/* The two sides that a capture context may have: side_ops.h. */
#pragma once

#include "preload/context/side_ops.h"

extern const struct context_side side_device, side_host;
