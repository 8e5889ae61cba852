/* SPDX-License-Identifier: Apache-2.0 */
#include "storage/steps_pack.h"

#include "core/cleanup.h"

#include <dmi/format.h>

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#define LEVEL 1

/* ------------------------------------------------------------------------- differences */

static uint32_t word_at(const uint8_t *at)
{
    uint32_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

static void put_word(uint8_t *at, uint32_t word)
{
    memcpy(at, &word, sizeof word);
}

/* Word by word; in place of the first one, its size, which is that of the entry before: 0. */
static void subtract(uint8_t *entry, const uint8_t *whole, const uint8_t *before, uint32_t size)
{
    put_word(entry, 0);
    for (uint32_t i = sizeof(uint32_t); i < size; i += sizeof(uint32_t))
        put_word(entry + i, word_at(whole + i) - word_at(before + i));
}

/* Of each entry that is as long as the one before. @steps: the writer's own. */
static void differ(const uint8_t *steps, size_t n, uint8_t *out)
{
    uint32_t size = 0, last = 0;
    memcpy(out, steps, n);
    for (size_t at = 0; at < n; at += size) {
        size = word_at(steps + at);
        if (size == last)
            subtract(out + at, steps + at, steps + at - last, size);
        last = size;
    }
}

/* Return: false: an entry has a size that cannot be. */
static bool undo(uint8_t *steps, size_t n)
{
    uint32_t size, last = 0;
    for (size_t at = 0; at < n; at += size, last = size) {
        uint32_t first = word_at(steps + at);
        size = first ? first : last;
        if (size < sizeof(struct dmi_step_entry) || size % DMI_CHUNK_ALIGN || size > n - at)
            return false;
        if (first)
            continue;
        put_word(steps + at, size);
        for (uint32_t i = sizeof(uint32_t); i < size; i += sizeof(uint32_t))
            put_word(steps + at + i, word_at(steps + at + i) + word_at(steps + at - last + i));
    }
    return true;
}

/* ------------------------------------------------------------------------- both ways */

int steps_pack(const uint8_t *steps, size_t n, struct text *meta)
{
    if (n > STEPS_PACK_MOST)
        return STEPS_PACK_E_LARGE;
    struct dmi_steps_packed head = { .n_bytes = n };
    size_t room = ZSTD_compressBound(n);
    _cleanup_(freep) uint8_t *differences = malloc(n + 1);
    _cleanup_(freep) char *frame = malloc(room);
    if (!differences || !frame)
        return -ENOMEM;
    differ(steps, n, differences);
    size_t used = ZSTD_compress(frame, room, differences, n, LEVEL);
    if (ZSTD_isError(used))
        return -ENOMEM;
    text_add(meta, (const char *)&head, sizeof head);
    text_add(meta, frame, used);
    if (!meta->failed)
        return 0;
    text_deinit(meta);
    return -ENOMEM;
}

static bool is_frame(const uint8_t *frame, size_t n)
{
    return n >= sizeof(uint32_t) && word_at(frame) == ZSTD_MAGICNUMBER &&
           ZSTD_findFrameCompressedSize(frame, n) == n && !ZSTD_getDictID_fromFrame(frame, n);
}

int steps_unpack(const uint8_t *meta, size_t n, uint8_t **out, size_t *n_out, const char **wrong)
{
    struct dmi_steps_packed head;
    *wrong = "the head of packed steps cannot be";
    if (n < sizeof head)
        return 0;
    memcpy(&head, meta, sizeof head);
    if (head.n_bytes > STEPS_PACK_MOST || head.n_bytes % DMI_CHUNK_ALIGN || head.reserved)
        return 0;
    *wrong = "packed steps are no zstd frame";
    if (!is_frame(meta + sizeof head, n - sizeof head))
        return 0;
    _cleanup_(freep) uint8_t *steps = malloc(head.n_bytes + 1);
    if (!steps)
        return -ENOMEM;
    size_t got = ZSTD_decompress(steps, head.n_bytes, meta + sizeof head, n - sizeof head);
    if (ZSTD_isError(got) || got != head.n_bytes)
        return 0;
    *wrong = "a packed step's size cannot be";
    if (!undo(steps, head.n_bytes))
        return 0;
    *wrong = NULL;
    *n_out = head.n_bytes;
    *out = steal_ptr(steps);
    return 0;
}
