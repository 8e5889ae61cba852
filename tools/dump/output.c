/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/dump/output.h"

static void cell_bytes(struct text *to, const json_t *row, const char *key)
{
    char size[24];
    text_printf(to, "%s", bytes_text(json_number_value(json_object_get(row, key)), size));
}

void cell_raw_bytes(struct text *to, const json_t *row)
{
    cell_bytes(to, row, "raw_bytes");
}

void cell_stored_bytes(struct text *to, const json_t *row)
{
    cell_bytes(to, row, "stored_bytes");
}

void cell_double(struct text *to, const json_t *row, const char *key, const char *none, bool cosine)
{
    const json_t *v = json_object_get(row, key);
    if (json_is_number(v))
        text_printf(to, cosine ? "%.7f" : "%.2e", json_number_value(v));
    else
        text_printf(to, "%s", none);
}
