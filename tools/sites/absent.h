/* SPDX-License-Identifier: Apache-2.0 */
/* `absent:` of a HookSpec: what was found nowhere, and what somebody wrote about it before. One thread. */
#pragma once

#include "policy/spec.h"
#include "tools/sites/entry.h"

#include <stdio.h>

/* Nothing of it was found in forwards of this kind. */
bool absent_is(const struct entries *entries, uint32_t kind, uint32_t site);

/**
 * absent_put() - writes the section, if it has any line
 * @old: the HookSpec that is written anew, NULL: there is none. Its lines stay where nothing contradicts them.
 */
void absent_put(FILE *out, const struct scene *scene, const struct entries *entries,
                const struct spec *old);

/* In single quotes of YAML. */
void absent_put_quoted(FILE *out, const char *text);
