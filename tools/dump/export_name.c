/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-dump export: names that are harmless to every file system, of names that need not be. */
#include "tools/dump/export.h"

#include "storage/codec/hash.h"

#include <inttypes.h>

#define MOST  200u /* bytes before the suffix */
#define STAYS 180u /* of a longer one */

static bool is_harmless(char c, bool is_first)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || (c == '.' && !is_first);
}

char *export_file_name(const char *key, size_t n_key, const char *suffix)
{
    struct text t = { 0 };
    for (size_t i = 0; i < n_key; i++)
        is_harmless(key[i], !i) ? text_add(&t, key + i, 1)
                                : text_printf(&t, "%%%02X", (unsigned char)key[i]);
    if (!n_key)
        text_printf(&t, "%%");
    if (t.n > MOST) {
        t.n = STAYS;
        text_printf(&t, "~%016" PRIx64, hash_bytes(key, n_key));
    }
    text_printf(&t, "%s", suffix);
    if (t.failed)
        text_deinit(&t);
    return t.data;
}
