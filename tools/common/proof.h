/* SPDX-License-Identifier: Apache-2.0 */
/* What tools say of an answer's proof (struct dmi_analyze_proof). Any thread. */
#pragma once

#include <dmi/analyze.h>

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* "not checked", "holds", "fails" */
const char *proof_state_name(uint32_t state);

/* An object, as a new value; numbers are null where nothing was compared. */
json_t *proof_value(const struct dmi_analyze_proof *proof);

/* Return: whether the answer may not be given; then @why, of @n_why bytes, says why. */
bool proof_refuses(const struct dmi_analyze_proof *proof, const struct dmi_analyze_shape *shape,
                   char *why, size_t n_why);
