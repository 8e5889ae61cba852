/* SPDX-License-Identifier: Apache-2.0 */
/* Items as bytes, for sinks that take bytes. A program of one thread. Source: docs/stream.md. */
#pragma once

#include "storage/text.h"
#include "tools/replay/item.h"

#include <stdbool.h>

/* The bytes of an item: the text, then the payload. */
struct coded {
    struct text text; /* owned; used again for the next item */
    const void *payload;
    size_t n_payload;
};

struct frame_format {
    const char *name, *what; /* for --format and for --help */
    /* Sets @out; nothing at all where the format has no such item. @values: JSON lines with values. */
    void (*encode)(const struct item *item, bool values, struct coded *out);
};

/* The default first; NULL after the last. */
extern const struct frame_format *const formats[];

extern const struct frame_format format_frames, format_jsonl, format_npy;

/* Return: NULL: no such format. */
const struct frame_format *format_find(const char *name);

/* Encodes an item. Return: 0 or -ENOMEM. */
int format_encode(const struct frame_format *format, const struct item *item, bool values,
                  struct coded *out);
