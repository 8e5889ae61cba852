/* SPDX-License-Identifier: Apache-2.0 */
/* TransformerLens's names. Pure: any thread. Source: docs/taps.md, "Names"; python/dmi/torch/names.py has the same. */
#ifndef TOOLS_DUMP_EXPORT_LENS_H
#define TOOLS_DUMP_EXPORT_LENS_H

#include <stddef.h>

/* Its name of a site, without "blocks.N."; NULL: it has none. */
const char *lens_name(const char *site);

#endif
