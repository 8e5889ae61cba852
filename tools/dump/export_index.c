/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-dump export: what goes along with npy files, which say neither what a tensor is nor bf16. */
#include "tools/dump/export.h"
#include "tools/common/npy.h"

#include <dmi/dtype.h>

static void add_target(struct text *t, const struct exporter *x, const struct target *target)
{
    uint32_t dtype = target->tensor->dtype;
    value_add_new(t, value_text(target->tensor->key));
    text_printf(t, ": ");
    value_add_new(t, json_pack("{s:o, s:s, s:s, s:o}", "file", value_text(target->file), "dtype",
                               dmi_dtype_info(dtype)->name, "stored_as", npy_type(dtype), "facts",
                               export_facts(x, target)));
}

void export_index(struct text *to, const struct exporter *x)
{
    const struct reader_run *run = reader_run(x->reader);
    text_printf(to, "{\n\"run\": \"%s\",\n\"model\": ", run->uuid);
    value_add_new(to, value_text(run->model));
    text_printf(to, ",\n\"conventions\": ");
    value_add_new(to, facts_object(run->conventions, run->n_conventions));
    text_printf(to, ",\n\"positions\": ");
    export_add_positions(to, x);
    text_printf(to, ",\n\"tensors\": {");
    for (size_t i = 0; i < x->n_targets; i++) {
        text_printf(to, "%s\n  ", i ? "," : "");
        add_target(to, x, &x->targets[i]);
    }
    text_printf(to, "\n}\n}\n");
}

void export_complain_of_bits(const struct exporter *x)
{
    for (size_t i = 0; i < x->n_targets; i++)
        if (!dmi_dtype_info(x->targets[i].tensor->dtype)->npy) {
            complain("numpy has no bf16 and no 8-bit floats: their bits are written as unsigned "
                     "integers; export as safetensors to keep the type");
            return;
        }
}
