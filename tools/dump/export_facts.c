/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-dump export: what goes along with the rows. */
#include "tools/dump/export.h"

static json_t *positions_value(const struct tensor *t)
{
    json_t *list = json_array();
    for (size_t p = 0; p < t->n_pieces; p++)
        for (uint32_t i = 0; i < t->pieces[p].n_rows; i++) {
            int64_t at = t->pieces[p].position;
            json_array_append_new(list, json_integer(at < 0 ? -1 : at + i));
        }
    return list;
}

json_t *export_facts(const struct exporter *x, const struct target *target)
{
    const struct tensor *t = target->tensor;
    json_t *shape = json_array();
    for (uint32_t d = 0; d < t->n_tail; d++)
        json_array_append_new(shape, json_integer(t->tail[d]));
    (void)x;
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "site", value_text(t->site->name),
                     "layer", value_layer(t->layer), "request",
                     t->request ? value_bytes(t->request, t->n_request) : json_null(), "row",
                     value_text(dmi_row_name(t->site->row)), "scale", value_double(t->site->scale),
                     "shape", shape, "note", value_text(t->site->note), "positions",
                     positions_value(t));
}
