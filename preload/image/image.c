/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/image/image.h"

#include "preload/image/elf.h"
#include "preload/image/fatbin.h"
#include "preload/image/ptx.h"

#include <stdbool.h>

/* What __cudaRegisterFatBinary() and cuModuleLoadFatBinary() take; source: fatbinary_section.h of the toolkit. */
struct wrapper {
    uint32_t magic;
    uint32_t version;
    const void *fatbin;
    const void *more;
};
#define WRAPPER_MAGIC 0x466243b1u

/* PTX begins with a comment, a directive or white space; where it is in memory, a zero byte ends it. */
static bool is_text(unsigned char c)
{
    return c == '\t' || c == '\n' || c == '\r' || (c >= ' ' && c < 0x7f);
}

static int read_kind(struct span image, uint32_t arch, const struct layout_sink *sink)
{
    if (elf_is(image))
        return elf_read(image, sink);
    if (fatbin_is(image))
        return fatbin_read(image, arch, sink);
    return image.n && is_text(image.at[0]) ? ptx_read(image, sink) : IMAGE_E_KIND;
}

int image_read(const void *image, size_t n_bytes, uint32_t arch, const struct layout_sink *sink)
{
    return n_bytes <= IMAGE_MAX_BYTES ? read_kind((struct span){ image, n_bytes }, arch, sink)
                                      : IMAGE_E_BOUNDS;
}

int image_read_loaded(const void *image, uint32_t arch, const struct layout_sink *sink)
{
    struct wrapper wrapper;
    if (strnlen(image, sizeof wrapper.magic) < sizeof wrapper.magic)
        return IMAGE_E_KIND; /* a text with no room for a kernel: binary kinds begin with four bytes that are not 0 */
    memcpy(&wrapper.magic, image, sizeof wrapper.magic);
    if (wrapper.magic == WRAPPER_MAGIC) {
        memcpy(&wrapper, image, sizeof wrapper);
        image = wrapper.fatbin;
    }
    return image ? read_kind((struct span){ image, IMAGE_MAX_BYTES }, arch, sink) : IMAGE_E_KIND;
}
