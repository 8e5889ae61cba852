/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/image/fatbin.h"

#include "core/cleanup.h"
#include "preload/image/elf.h"
#include "preload/image/ptx.h"

#include <assert.h>
#include <errno.h>
#include <lz4.h>
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
    uint32_t arch; /* 75 for sm_75 and compute_75 */
    uint32_t name_offset, n_name;
    uint64_t flags;
    uint64_t unknown3;
    uint64_t n_unpacked;
};
enum { KIND_PTX = 1, KIND_ELF = 2, FLAG_LZ4 = 0x2000, FLAG_ZSTD = 0x8000 };

static_assert(sizeof(struct fatbin_head) == 16, "as stored");
static_assert(sizeof(struct entry_head) == 64, "as stored");

/* Machine code runs on devices of its own generation from its own on, PTX on all from its own on. */
static bool wanted(const struct entry_head *entry, uint32_t arch)
{
    if (entry->kind == KIND_PTX)
        return !arch || entry->arch <= arch;
    return entry->kind == KIND_ELF &&
           (!arch || (entry->arch <= arch && entry->arch / 10 == arch / 10));
}

/* Bytes that came out, -1: it is damaged, or larger than it says. */
static int64_t unpack(uint64_t flags, struct span packed, void *out, uint64_t n_out)
{
    if (flags & FLAG_LZ4)
        return LZ4_decompress_safe((const char *)packed.at, out, (int)packed.n, (int)n_out);
    size_t n = ZSTD_decompress(out, n_out, packed.at, packed.n);
    return ZSTD_isError(n) ? -1 : (int64_t)n;
}

static int read_code(uint16_t kind, struct span code, const struct layout_sink *sink)
{
    if (kind == KIND_PTX)
        return ptx_read(code, sink);
    return elf_is(code) ? elf_read(code, sink) : IMAGE_E_PACKED;
}

static int read_packed(const struct entry_head *entry, struct span stored,
                       const struct layout_sink *sink)
{
    struct span packed;
    if (!span_cut(stored, 0, entry->n_packed, &packed) || packed.n > INT32_MAX ||
        entry->n_unpacked > IMAGE_MAX_UNPACKED)
        return IMAGE_E_BOUNDS;
    _cleanup_(freep) unsigned char *out = malloc(entry->n_unpacked + 1);
    if (!out)
        return -ENOMEM;
    int64_t n = unpack(entry->flags, packed, out, entry->n_unpacked);
    if (n < 0)
        return IMAGE_E_PACKED;
    return read_code(entry->kind, (struct span){ out, (uint64_t)n }, sink);
}

static int read_entry(const struct entry_head *entry, struct span stored,
                      const struct layout_sink *sink)
{
    return entry->flags & (FLAG_LZ4 | FLAG_ZSTD) ? read_packed(entry, stored, sink)
                                                 : read_code(entry->kind, stored, sink);
}

bool fatbin_is(struct span image)
{
    uint32_t magic = 0;
    return span_read(image, 0, &magic, sizeof magic) && magic == FATBIN_MAGIC;
}

int fatbin_read(struct span image, uint32_t arch, const struct layout_sink *sink)
{
    struct fatbin_head head;
    struct entry_head entry;
    struct span all, stored;
    int first = 0;
    if (!span_read(image, 0, &head, sizeof head) || head.n_head < sizeof head ||
        !span_cut(image, head.n_head, head.n_entries, &all))
        return IMAGE_E_BOUNDS;
    for (uint64_t at = 0; span_read(all, at, &entry, sizeof entry);) {
        uint64_t n_rest = all.n - at;
        if (entry.n_head < sizeof entry || entry.n_head > n_rest ||
            !span_cut(all, at + entry.n_head, entry.n_stored, &stored))
            return IMAGE_E_BOUNDS;
        int r = wanted(&entry, arch) ? read_entry(&entry, stored, sink) : 0;
        if (!first)
            first = r;
        at += entry.n_head + entry.n_stored;
    }
    return first;
}
