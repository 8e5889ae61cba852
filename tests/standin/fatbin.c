/* SPDX-License-Identifier: Apache-2.0 */
#include "fatbin.h"
#include "version.h"

#include <assert.h>
#include <stdint.h>
#include <string.h>

/* What __cudaRegisterFatBinary() and cuModuleLoadFatBinary() are given: fatbinary_section.h. */
struct wrapper {
    uint32_t magic;
    uint32_t version;
    const void *data;
    void *unused;
};
#define WRAPPER_MAGIC 0x466243b1u

/* A header, then entries, each with a header of its own; all sizes in bytes. */
struct header {
    uint32_t magic;
    uint16_t version;
    uint16_t header_bytes;
    uint64_t bytes; /* of the entries */
};
#define HEADER_MAGIC 0xba55ed50u

struct entry_header {
    uint16_t kind; /* 1 PTX, 2 ELF */
    uint16_t unknown1;
    uint32_t header_bytes;
    uint64_t bytes; /* to the next entry */
    uint32_t compressed_bytes;
    uint32_t unknown2;
    uint16_t minor, major;
    uint32_t arch; /* 75 for compute_75 */
    uint32_t name_offset, name_bytes;
    uint64_t flags;
};
enum { KIND_PTX = 1, FLAG_LZ4 = 0x2000, FLAG_ZSTD = 0x8000, ELF_MAGIC = 0x464c457f };

static_assert(sizeof(struct header) == 16, "as seen on disk");
static_assert(sizeof(struct entry_header) == 48, "as seen on disk, its first part");

static CUresult scan(const unsigned char *image, int sm, int newest, const char **text,
                     size_t *n_text)
{
    struct header header;
    uint64_t at, end;
    uint32_t best = 0;
    CUresult none = CUDA_ERROR_NO_BINARY_FOR_GPU;

    memcpy(&header, image, sizeof(header));
    if (header.header_bytes < sizeof(header) || header.bytes > UINT32_MAX)
        return CUDA_ERROR_INVALID_IMAGE;
    end = header.header_bytes + header.bytes;
    for (at = header.header_bytes; at + sizeof(struct entry_header) <= end;) {
        struct entry_header entry;

        memcpy(&entry, image + at, sizeof(entry));
        if (entry.header_bytes < sizeof(entry) || entry.header_bytes > end - at ||
            entry.bytes > end - at - entry.header_bytes)
            return CUDA_ERROR_INVALID_IMAGE;
        if (entry.kind == KIND_PTX && !(entry.flags & (FLAG_LZ4 | FLAG_ZSTD)) &&
            entry.arch <= (uint32_t)sm && entry.arch >= best && entry.bytes > 0) {
            const char *found = (const char *)image + at + entry.header_bytes;
            size_t n_found = strnlen(found, entry.bytes);

            if (ptx_version(found, n_found) > newest) {
                none = CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
            } else {
                best = entry.arch;
                *text = found;
                *n_text = n_found;
            }
        }
        at += entry.header_bytes + entry.bytes;
    }
    return best ? CUDA_SUCCESS : none;
}

CUresult fatbin_find_ptx(const void *image, int sm, int newest, const char **text, size_t *n_text)
{
    const char *bytes = image;
    uint32_t magic;

    /* Text may be shorter than a magic number. */
    for (int i = 0; i < 4; i++) {
        if (!bytes[i])
            return CUDA_ERROR_INVALID_IMAGE;
    }
    memcpy(&magic, image, sizeof(magic));
    if (magic == WRAPPER_MAGIC) {
        struct wrapper wrapper;

        memcpy(&wrapper, image, sizeof(wrapper));
        image = wrapper.data;
        if (!image)
            return CUDA_ERROR_INVALID_IMAGE;
        memcpy(&magic, image, sizeof(magic));
        if (magic != HEADER_MAGIC)
            return CUDA_ERROR_INVALID_IMAGE;
    }
    if (magic == HEADER_MAGIC)
        return scan(image, sm, newest, text, n_text);
    if (magic == ELF_MAGIC)
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    *text = bytes;
    *n_text = strlen(bytes);
    return ptx_version(*text, *n_text) > newest ? CUDA_ERROR_UNSUPPORTED_PTX_VERSION : CUDA_SUCCESS;
}
