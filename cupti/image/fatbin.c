/* SPDX-License-Identifier: Apache-2.0 */
#include "cupti/image/fatbin.h"

#include <assert.h>
#include <errno.h>
#include <lz4.h>
#include <stdlib.h>
#include <zstd.h>

/* A header, then entries, each with a header of its own; all sizes in bytes. Source: output of nvcc 13.0. */
struct fatbin_head {
    uint32_t magic;
    uint16_t version;
    uint16_t n_head;
    uint64_t n_entries; /* bytes of them all */
};
#define FATBIN_MAGIC 0xba55ed50u

struct entry_head {
    uint16_t kind;
    uint16_t unknown1;
    uint32_t n_head;
    uint64_t n_stored; /* to the next entry: padded */
    uint32_t n_packed; /* 0: not compressed */
    uint32_t unknown2;
    uint16_t minor, major;
    uint32_t arch;
    uint32_t name_offset, n_name;
    uint64_t flags;
    uint64_t unknown3;
    uint64_t n_unpacked;
};
enum { FLAG_LZ4 = 0x2000, FLAG_ZSTD = 0x8000 };

static_assert(sizeof(struct fatbin_head) == 16, "as stored");
static_assert(sizeof(struct entry_head) == 64, "as stored");

bool fatbin_is(struct bytes image)
{
    uint32_t magic = 0;
    return bytes_read(image, 0, &magic, sizeof magic) && magic == FATBIN_MAGIC;
}

int fatbin_open(struct bytes image, struct bytes *entries)
{
    struct fatbin_head head;
    bool is = bytes_read(image, 0, &head, sizeof head) && head.n_head >= sizeof head &&
              bytes_cut(image, head.n_head, head.n_entries, entries);
    return is ? 0 : IMAGE_E_BOUNDS;
}

int fatbin_next(struct bytes *entries, struct fatbin_entry *out)
{
    struct entry_head head;
    struct bytes rest;
    if (!bytes_read(*entries, 0, &head, sizeof head))
        return IMAGE_E_END;
    if (head.n_head < sizeof head || !bytes_cut(*entries, head.n_head, head.n_stored, &out->stored))
        return IMAGE_E_BOUNDS;
    uint64_t n = head.n_head + head.n_stored;
    bytes_cut(*entries, n, entries->n - n, &rest);
    out->kind = head.kind;
    out->arch = head.arch;
    out->flags = head.flags;
    out->n_packed = head.n_packed;
    out->n_unpacked = head.n_unpacked;
    *entries = rest;
    return 0;
}

/* Bytes that came out, -1: it is damaged, or larger than it says. */
static int64_t unpack(uint64_t flags, struct bytes packed, void *out, uint64_t n_out)
{
    if (flags & FLAG_LZ4)
        return LZ4_decompress_safe((const char *)packed.at, out, (int)packed.n, (int)n_out);
    size_t n = ZSTD_decompress(out, n_out, packed.at, packed.n);
    return ZSTD_isError(n) ? -1 : (int64_t)n;
}

int fatbin_code(const struct fatbin_entry *entry, struct bytes *code, unsigned char **own)
{
    struct bytes packed;
    *own = NULL;
    *code = entry->stored;
    if (!(entry->flags & (FLAG_LZ4 | FLAG_ZSTD)))
        return 0;
    if (!bytes_cut(entry->stored, 0, entry->n_packed, &packed) || packed.n > INT32_MAX ||
        entry->n_unpacked > IMAGE_MAX_UNPACKED)
        return IMAGE_E_BOUNDS;
    *own = malloc(entry->n_unpacked + 1);
    if (!*own)
        return -ENOMEM;
    int64_t n = unpack(entry->flags, packed, *own, entry->n_unpacked);
    *code = (struct bytes){ *own, n < 0 ? 0 : (uint64_t)n };
    return n < 0 ? IMAGE_E_PACKED : 0;
}
