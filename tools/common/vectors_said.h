/* SPDX-License-Identifier: Apache-2.0 */
/* What a file of others says beside its tensors, by keys that nothing here reads. Pure functions. */
#pragma once

#include <stdbool.h>

/* Could what @key says change the numbers of a vector, or where they belong? @value: NULL: no text. As bears() of python/dmi/vectors/tensors.py. */
bool said_bears(const char *key, const char *value);
