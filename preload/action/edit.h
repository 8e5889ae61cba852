/* SPDX-License-Identifier: Apache-2.0 */
/* The actions of places: the bank keeps rows of the tensor, edits write into rows. They publish no record. Device code: kernels/edit.cu. */
#pragma once

#include "preload/action/action.h"

extern const struct action action_edit, action_save;
