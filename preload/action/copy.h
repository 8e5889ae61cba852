/* SPDX-License-Identifier: Apache-2.0 */
/* The action `capture`: the tensor's rows go into a slot of the ring. Device code: kernels/copy.cu. */
#pragma once

#include "preload/action/action.h"

extern const struct action action_copy;
