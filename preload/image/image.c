/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/image/image.h"

#include "core/cleanup.h"
#include "core/err.h"
#include "cupti/image/elf.h"
#include "cupti/image/fatbin.h"
#include "preload/image/ptx.h"

#include <elf.h>
#include <stdbool.h>

#define TYPE_INFO 0x70000000u /* of sections .nv.info* */

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

/* ------------------------------------------------------------------------- machine code */

/* Return: false where @list is not a list of attributes. */
static bool read_attributes(struct bytes list, struct layout_draft *draft, uint64_t *n_bytes)
{
    struct elf_attribute attribute;
    struct elf_param p;
    while (elf_next_attribute(&list, &attribute)) {
        if (attribute.id == ELF_PARAM_BYTES)
            *n_bytes = attribute.value;
        else if (attribute.id != ELF_PARAM && attribute.id != ELF_PARAM_LARGE)
            continue;
        else if (elf_param(&attribute, &p))
            layout_add(draft, p.number, p.offset, p.size);
        else
            draft->bad = true;
    }
    return !list.n;
}

static void read_kernel(const char *name, struct bytes info, const struct layout_sink *sink)
{
    struct layout_draft draft = { 0 };
    uint64_t n_bytes = 0; /* a kernel without parameters has no such attribute */
    if (*name && read_attributes(info, &draft, &n_bytes) && !draft.n == !n_bytes &&
        layout_finish(&draft, n_bytes))
        sink->kernel(sink->ctx, name, strlen(name), draft.at, draft.n);
}

static int read_machine_code(struct bytes image, const struct layout_sink *sink)
{
    struct elf e;
    struct elf_section section;
    struct bytes info;
    int r = elf_open(image, &e);
    if (!r && e.machine != EM_CUDA)
        return IMAGE_E_KIND;
    for (uint64_t i = 1; !r && !(r = elf_section(&e, i, &section)); i++) {
        if (section.type != TYPE_INFO || !section.name ||
            strncmp(section.name, ELF_OF_ONE, strlen(ELF_OF_ONE)) != 0)
            continue;
        if (!elf_bytes(&e, &section, &info))
            return IMAGE_E_BOUNDS;
        read_kernel(section.name + strlen(ELF_OF_ONE), info, sink);
    }
    return r == IMAGE_E_END ? 0 : r;
}

/* ------------------------------------------------------------------------- a fatbin */

/* Machine code runs on devices of its own generation from its own on, PTX on all from its own on. */
static bool wanted(const struct fatbin_entry *entry, uint32_t arch)
{
    if (entry->kind == FATBIN_PTX)
        return !arch || entry->arch <= arch;
    return entry->kind == FATBIN_ELF &&
           (!arch || (entry->arch <= arch && entry->arch / 10 == arch / 10));
}

static int read_entry(const struct fatbin_entry *entry, const struct layout_sink *sink)
{
    _cleanup_(freep) unsigned char *own;
    struct bytes code;
    TRY(fatbin_code(entry, &code, &own));
    if (entry->kind == FATBIN_PTX)
        return ptx_read(code, sink);
    return elf_is(code) ? read_machine_code(code, sink) : IMAGE_E_PACKED;
}

/* The kernels of all entries that a device of @arch may run: those after one that cannot be read, too. */
static int read_fatbin(struct bytes image, uint32_t arch, const struct layout_sink *sink)
{
    struct fatbin_entry entry;
    struct bytes entries;
    int first = 0, r = fatbin_open(image, &entries);
    while (!r && !(r = fatbin_next(&entries, &entry))) {
        int e = wanted(&entry, arch) ? read_entry(&entry, sink) : 0;
        first = first ? first : e;
    }
    return r == IMAGE_E_END ? first : r;
}

/* ------------------------------------------------------------------------- any kind */

static int read_kind(struct bytes image, uint32_t arch, const struct layout_sink *sink)
{
    if (elf_is(image))
        return read_machine_code(image, sink);
    if (fatbin_is(image))
        return read_fatbin(image, arch, sink);
    return image.n && is_text(image.at[0]) ? ptx_read(image, sink) : IMAGE_E_KIND;
}

int image_read(const void *image, size_t n_bytes, uint32_t arch, const struct layout_sink *sink)
{
    return n_bytes <= IMAGE_MAX_BYTES ? read_kind((struct bytes){ image, n_bytes }, arch, sink)
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
    return image ? read_kind((struct bytes){ image, IMAGE_MAX_BYTES }, arch, sink) : IMAGE_E_KIND;
}
