/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/replay/format.h"

#include <errno.h>
#include <string.h>

const struct frame_format *const formats[] = { &format_frames, &format_jsonl, &format_npy, NULL };

const char *item_kind_name(enum item_kind kind)
{
    static const char *const names[ITEM_KINDS] = { "",        "run", "step", "record",
                                                   "outcome", "gap", "end" };
    return names[kind];
}

const struct frame_format *format_find(const char *name)
{
    for (size_t i = 0; formats[i]; i++)
        if (!strcmp(formats[i]->name, name))
            return formats[i];
    return NULL;
}

int format_encode(const struct frame_format *format, const struct item *item, bool values,
                  struct coded *out)
{
    out->text.n = 0;
    out->payload = NULL;
    out->n_payload = 0;
    format->encode(item, values, out);
    return out->text.failed ? -ENOMEM : 0;
}
