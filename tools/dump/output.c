/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/dump/output.h"

void value_of_bytes(struct text *to, const json_t *v)
{
    char size[24];
    text_printf(to, "%s", bytes_text(json_number_value(v), size));
}

void value_of_error(struct text *to, const json_t *v)
{
    text_printf(to, json_is_number(v) ? "%.2e" : "inf", json_number_value(v));
}

void value_of_cosine(struct text *to, const json_t *v)
{
    text_printf(to, json_is_number(v) ? "%.7f" : "nan", json_number_value(v));
}
