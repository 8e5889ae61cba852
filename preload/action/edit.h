/* SPDX-License-Identifier: Apache-2.0 */
/* The action of places: edits write into rows of the tensor. It publishes no record. Device code: kernels/edit.cu. */
#ifndef PRELOAD_ACTION_EDIT_H
#define PRELOAD_ACTION_EDIT_H

#include "preload/action/action.h"

extern const struct action action_edit;

#endif
