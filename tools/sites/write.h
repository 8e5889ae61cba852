/* SPDX-License-Identifier: Apache-2.0 */
/* What was found, as a HookSpec and as lines for people. One thread. */
#pragma once

#include "policy/spec.h"
#include "tools/sites/entry.h"

#include <stdio.h>

/* What begins a HookSpec that nobody wrote. @model: or NULL */
void write_head(FILE *out, const char *model);

/* `forward:`, `sites:` and `absent:`. Returns false where nothing of it can be a HookSpec: then nothing is written.
 * @old: the HookSpec that is written anew, or NULL */
bool write_spec(FILE *out, const struct scene *scene, const struct entries *entries,
                const struct spec *old);

/* One entry of `sites:`. */
void write_site(FILE *out, const struct scene *scene, const struct entry *entry);

/* A line a site: where, how sure, what else. */
void write_report(FILE *out, const struct scene *scene, const struct entries *entries);
