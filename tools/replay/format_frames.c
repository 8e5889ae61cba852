/* SPDX-License-Identifier: Apache-2.0 */
/* Frames: a header, a JSON object, a payload. Source: docs/stream.md. */
#include "tools/replay/format.h"

#include "read/value.h"
#include "storage/codec/hash.h"

#include <assert.h>
#include <string.h>

#define FRAME_MAGIC   0x66494d44u /* the bytes "DMIf" */
#define FRAME_VERSION 1

struct frame_header {
    uint32_t magic;
    uint16_t version;
    uint16_t type;      /* enum item_kind */
    uint64_t number;    /* of the frame in the stream */
    uint32_t n_header;  /* of this struct */
    uint32_t n_json;    /* bytes of the object, right after it */
    uint64_t n_payload; /* after that */
    uint64_t json_hash, payload_hash;
    uint64_t hash; /* of the 48 bytes before it */
};
static_assert(sizeof(struct frame_header) == 56, "layout of the stream");

static void encode(const struct item *item, bool values, struct coded *out)
{
    (void)values;
    struct frame_header h = { .magic = FRAME_MAGIC,
                              .version = FRAME_VERSION,
                              .type = (uint16_t)item->kind,
                              .number = item->number,
                              .n_header = sizeof h,
                              .n_payload = item->n_data,
                              .payload_hash = item->n_data ? item->hash : 0 };
    text_add(&out->text, (const char *)&h, sizeof h);
    value_add(&out->text, item->facts);
    if (out->text.failed)
        return;
    h.n_json = (uint32_t)(out->text.n - sizeof h);
    h.json_hash = hash_bytes(out->text.data + sizeof h, h.n_json);
    h.hash = hash_bytes(&h, sizeof h - sizeof h.hash);
    memcpy(out->text.data, &h, sizeof h);
    out->payload = item->data;
    out->n_payload = item->n_data;
}

const struct frame_format format_frames = {
    .name = "frames",
    .what = "frames with headers, checksums and the bits that were captured (docs/stream.md)",
    .encode = encode,
};
