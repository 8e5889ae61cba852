/* SPDX-License-Identifier: Apache-2.0 */
/* Records as npy files one after the other, as numpy.load() reads them from one file object. */
#include "tools/replay/format.h"

#include "tools/common/npy.h"

static void encode(const struct item *item, bool values, struct coded *out)
{
    (void)values;
    if (item->kind != ITEM_RECORD)
        return;
    npy_header(&out->text, item->record->at.dtype, item->dims, item->n_dims);
    out->payload = item->data;
    out->n_payload = item->n_data;
}

const struct frame_format format_npy = {
    .name = "npy",
    .what = "an npy file a record, one after the other; see --names",
    .encode = encode,
};
