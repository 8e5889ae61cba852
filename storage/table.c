/* SPDX-License-Identifier: Apache-2.0 */
#include "storage/table.h"

#include <dmi/format.h>

bool table_meta(const struct text *entries, size_t entry_bytes, const struct text *strings,
                struct text *meta)
{
    const struct dmi_table_head head = {
        .n_entries = (uint32_t)(entries->n / entry_bytes),
        .entry_bytes = (uint32_t)entry_bytes,
        .n_string_bytes = (uint32_t)strings->n,
    };
    text_add(meta, (const char *)&head, sizeof head);
    text_add(meta, entries->n ? entries->data : "", entries->n);
    text_add(meta, strings->n ? strings->data : "", strings->n);
    text_add(meta, "\0\0\0\0\0\0\0", -meta->n % DMI_CHUNK_ALIGN); /* of the chunk's padding */
    if (meta->failed || entries->failed || strings->failed) {
        text_deinit(meta);
        *meta = (struct text){ 0 };
        return false;
    }
    meta->n = sizeof head + entries->n + strings->n;
    return true;
}
