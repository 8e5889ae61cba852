/* SPDX-License-Identifier: Apache-2.0 */
/* TransformerLens's names. Pure: any thread. Source: docs/taps.md, "Names"; python/dmi/torch/names.py has the same. */
#pragma once

#include <stddef.h>

/* Its name of a site, without "blocks.N."; NULL: it has none. */
const char *lens_name(const char *site);
