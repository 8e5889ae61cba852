/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/action/action.h"
#include "preload/action/copy.h"

const struct action *const action_table[] = { [SPEC_CAPTURE] = &action_copy };
