/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/action/action.h"
#include "preload/action/copy.h"
#include "preload/action/edit.h"

const struct action *const action_table[] = {
    [SPEC_CAPTURE] = &action_copy, [SPEC_EDIT] = &action_edit, [SPEC_SAVE] = &action_save
};
