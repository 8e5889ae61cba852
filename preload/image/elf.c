/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/image/elf.h"

#include <elf.h>

/*
 * As seen in cubins of ptxas 11.8, 12.2 and 13.0 for sm_75 to sm_121; they do not differ in any of this. An attribute of FORMAT_BYTES
 * says how many bytes follow it; of formats 1 to 3 nothing follows.
 */
#define TYPE_INFO    0x70000000u /* of sections .nv.info* */
#define INFO_PREFIX  ".nv.info."
#define FORMAT_BYTES 4

enum attribute {
    ATTR_PARAM =
        0x17, /* u32 index, u16 ordinal, u16 offset, u32 whose bits 18 to 31 are the size */
    ATTR_PARAM_BYTES = 0x19, /* the value: bytes of all parameters */
    ATTR_PARAM_LARGE = 0x45, /* as ATTR_PARAM, but u16 size, u16 flags at its end */
};

struct attribute_head {
    uint8_t format, attribute;
    uint16_t value;
};

struct attribute_param {
    uint32_t index;
    uint16_t ordinal, offset;
    uint32_t size;
};

struct elf {
    struct span sections, names;
    uint64_t n_sections;
};

static bool section_at(const struct elf *e, uint64_t i, Elf64_Shdr *section)
{
    return span_read(e->sections, i * sizeof *section, section, sizeof *section);
}

/* A name in the table of section names; NULL: it lies outside, or has no end. */
static const char *name_at(const struct elf *e, uint64_t offset)
{
    struct span rest;
    if (offset >= e->names.n || !span_cut(e->names, offset, e->names.n - offset, &rest) ||
        !memchr(rest.at, 0, rest.n))
        return NULL;
    return (const char *)rest.at;
}

/* ------------------------------------------------------------------------- a kernel's attributes */

static void add_param(struct layout_draft *draft, enum attribute attribute, struct span value)
{
    struct attribute_param p;
    if (!span_read(value, 0, &p, sizeof p)) {
        draft->bad = true;
        return;
    }
    layout_add(draft, p.ordinal, p.offset,
               attribute == ATTR_PARAM ? p.size >> 18 : p.size & 0xffff);
}

/* Return: false where @info is not a list of attributes. */
static bool read_attributes(struct span info, struct layout_draft *draft, uint64_t *n_bytes)
{
    struct attribute_head head;
    struct span value;
    uint64_t at = 0;
    while (span_read(info, at, &head, sizeof head)) {
        at += sizeof head;
        uint64_t n = head.format == FORMAT_BYTES ? head.value : 0;
        if (head.format < 1 || head.format > FORMAT_BYTES || !span_cut(info, at, n, &value))
            return false;
        if (head.attribute == ATTR_PARAM || head.attribute == ATTR_PARAM_LARGE)
            add_param(draft, head.attribute, value);
        else if (head.attribute == ATTR_PARAM_BYTES)
            *n_bytes = head.value;
        at += n;
    }
    return at == info.n;
}

static void read_kernel(const char *name, struct span info, const struct layout_sink *sink)
{
    struct layout_draft draft = { 0 };
    uint64_t n_bytes = 0; /* a kernel without parameters has no such attribute */
    if (*name && read_attributes(info, &draft, &n_bytes) && !draft.n == !n_bytes &&
        layout_finish(&draft, n_bytes))
        sink->kernel(sink->ctx, name, strlen(name), draft.at, draft.n);
}

/* ------------------------------------------------------------------------- the file */

bool elf_is(struct span image)
{
    struct span magic;
    return span_cut(image, 0, SELFMAG, &magic) && !memcmp(magic.at, ELFMAG, SELFMAG);
}

/* The section table, and the names. Large counts are in section 0: gABI, "Sections", e_shnum and e_shstrndx. */
static int open_tables(struct span image, struct elf *e)
{
    Elf64_Ehdr head;
    Elf64_Shdr first, names;
    if (!span_read(image, 0, &head, sizeof head))
        return IMAGE_E_BOUNDS;
    if (head.e_ident[EI_CLASS] != ELFCLASS64 || head.e_ident[EI_DATA] != ELFDATA2LSB ||
        head.e_machine != EM_CUDA || !head.e_shoff || head.e_shentsize != sizeof first)
        return IMAGE_E_KIND;
    if (!span_read(image, head.e_shoff, &first, sizeof first))
        return IMAGE_E_BOUNDS;
    e->n_sections = head.e_shnum ? head.e_shnum : first.sh_size;
    uint64_t of_names = head.e_shstrndx == SHN_XINDEX ? first.sh_link : head.e_shstrndx;
    if (e->n_sections > image.n / sizeof first ||
        !span_cut(image, head.e_shoff, e->n_sections * sizeof first, &e->sections) ||
        !section_at(e, of_names, &names) ||
        !span_cut(image, names.sh_offset, names.sh_size, &e->names))
        return IMAGE_E_BOUNDS;
    return 0;
}

int elf_read(struct span image, const struct layout_sink *sink)
{
    struct elf e;
    int r = open_tables(image, &e);
    for (uint64_t i = 1; !r && i < e.n_sections; i++) {
        Elf64_Shdr section;
        struct span info;
        const char *name = NULL;
        if (!section_at(&e, i, &section))
            return IMAGE_E_BOUNDS;
        if (section.sh_type == TYPE_INFO)
            name = name_at(&e, section.sh_name);
        if (!name || strncmp(name, INFO_PREFIX, sizeof INFO_PREFIX - 1))
            continue;
        if (!span_cut(image, section.sh_offset, section.sh_size, &info))
            return IMAGE_E_BOUNDS;
        read_kernel(name + sizeof INFO_PREFIX - 1, info, sink);
    }
    return r;
}
