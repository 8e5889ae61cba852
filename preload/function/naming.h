/* SPDX-License-Identifier: Apache-2.0 */
/* What kernels' names mean to the spec, as they are and as people write them. */
#pragma once

#include "policy/pattern.h"
#include "policy/spec.h"

#include <stdbool.h>

/**
 * naming_match() - spec_match_kernel() of a raw name and of what it hides
 * On a stack of the library's own: neither demangling nor regular expressions fit each thread's. Thread: any; allocates.
 */
bool naming_match(const struct spec *spec, const char *name, struct spec_match *match);

/* The same of one pattern. */
bool naming_matches(const struct pattern *pattern, const char *name);
