/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/spec.h"

#include <assert.h>

#define ROW(...) __VA_ARGS__,
const struct spec_action_row spec_actions[] = { SPEC_ACTIONS(ROW) };
const uint32_t spec_n_actions = sizeof spec_actions / sizeof *spec_actions;
static_assert(sizeof spec_actions / sizeof *spec_actions <= SPEC_MAX_ACTIONS, "arrays have room");
