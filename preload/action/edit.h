/* SPDX-License-Identifier: Apache-2.0 */
/* The actions of places: the bank keeps rows of the tensor, edits write into rows. They publish no record. Device code: kernels/edit.cu. */
#ifndef PRELOAD_ACTION_EDIT_H
#define PRELOAD_ACTION_EDIT_H

#include "preload/action/action.h"

extern const struct action action_edit, action_save;

#endif
