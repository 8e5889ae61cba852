/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-dump export: what goes along with npy files, which say neither what a tensor is nor bf16; the index of a dataset. */
#include "tools/dump/dataset.h"
#include "tools/dump/export.h"

#include "core/cleanup.h"
#include "core/whole.h"
#include "tools/common/npy.h"

#include <dmi/dtype.h>

#include <errno.h>
#include <fcntl.h>

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

int export_dataset_index(struct err *err, struct exporter *x)
{
    _cleanup_(text_deinit) struct text t = { 0 };
    dataset_add_text(&t, x->dataset);
    _cleanup_(closep) int fd =
        openat(x->fd, OUTFILE_INDEX, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    int r = t.failed ? -ENOMEM : fd < 0 ? -errno : whole_write(fd, t.data, t.n, 0);
    return r ? err_set_errno(err, -r, "cannot write %s/" OUTFILE_INDEX, x->output) : 0;
}
