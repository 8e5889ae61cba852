/* SPDX-License-Identifier: Apache-2.0 */
#include "cupti/image/elf.h"

#include <elf.h>

/*
 * As seen in cubins of ptxas 11.8, 12.2 and 13.0 for sm_75 to sm_121; they do not differ in any of this. An attribute of FORMAT_BYTES
 * says how many bytes follow it; of formats 1 to 3 nothing follows.
 */
#define FORMAT_BYTES 4

/* As ELF_PARAM has it; ELF_PARAM_LARGE has u16 size, u16 flags at its end. */
struct param_bytes {
    uint32_t index;
    uint16_t number, offset;
    uint32_t size; /* bits 18 to 31 */
};

bool elf_is(struct bytes image)
{
    struct bytes magic;
    return bytes_cut(image, 0, SELFMAG, &magic) && !memcmp(magic.at, ELFMAG, SELFMAG);
}

static bool header_at(const struct elf *e, uint64_t i, Elf64_Shdr *head)
{
    return bytes_read(e->sections, i * sizeof *head, head, sizeof *head);
}

/* Large counts are in section 0: gABI, "Sections", e_shnum and e_shstrndx. */
int elf_open(struct bytes image, struct elf *e)
{
    Elf64_Ehdr head;
    Elf64_Shdr first, names;
    *e = (struct elf){ .image = image };
    if (!bytes_read(image, 0, &head, sizeof head))
        return IMAGE_E_BOUNDS;
    if (head.e_ident[EI_CLASS] != ELFCLASS64 || head.e_ident[EI_DATA] != ELFDATA2LSB ||
        !head.e_shoff || head.e_shentsize != sizeof first)
        return IMAGE_E_KIND;
    if (!bytes_read(image, head.e_shoff, &first, sizeof first))
        return IMAGE_E_BOUNDS;
    e->machine = head.e_machine;
    e->n_sections = head.e_shnum ? head.e_shnum : first.sh_size;
    uint64_t of_names = head.e_shstrndx == SHN_XINDEX ? first.sh_link : head.e_shstrndx;
    if (e->n_sections > image.n / sizeof first ||
        !bytes_cut(image, head.e_shoff, e->n_sections * sizeof first, &e->sections) ||
        !header_at(e, of_names, &names) ||
        !bytes_cut(image, names.sh_offset, names.sh_size, &e->names))
        return IMAGE_E_BOUNDS;
    return 0;
}

int elf_section(const struct elf *e, uint64_t i, struct elf_section *out)
{
    Elf64_Shdr head;
    if (i >= e->n_sections)
        return IMAGE_E_END;
    if (!header_at(e, i, &head))
        return IMAGE_E_BOUNDS;
    *out = (struct elf_section){ .name = elf_text(e->names, head.sh_name),
                                 .type = head.sh_type,
                                 .link = head.sh_link,
                                 .offset = head.sh_offset,
                                 .n_bytes = head.sh_size };
    return 0;
}

bool elf_bytes(const struct elf *e, const struct elf_section *section, struct bytes *out)
{
    return bytes_cut(e->image, section->offset, section->n_bytes, out);
}

const char *elf_text(struct bytes strings, uint64_t offset)
{
    struct bytes rest;
    if (offset >= strings.n || !bytes_cut(strings, offset, strings.n - offset, &rest) ||
        !memchr(rest.at, 0, rest.n))
        return NULL;
    return (const char *)rest.at;
}

/* ------------------------------------------------------------------------- attributes */

bool elf_next_attribute(struct bytes *list, struct elf_attribute *out)
{
    struct {
        uint8_t format, id;
        uint16_t value;
    } head;
    if (!bytes_read(*list, 0, &head, sizeof head))
        return false;
    uint64_t n = head.format == FORMAT_BYTES ? head.value : 0;
    *out = (struct elf_attribute){ .format = head.format, .id = head.id, .value = head.value };
    return head.format >= 1 && head.format <= FORMAT_BYTES &&
           bytes_cut(*list, sizeof head, n, &out->bytes) &&
           bytes_cut(*list, sizeof head + n, list->n - sizeof head - n, list);
}

bool elf_param(const struct elf_attribute *attribute, struct elf_param *out)
{
    struct param_bytes p;
    if (!bytes_read(attribute->bytes, 0, &p, sizeof p))
        return false;
    *out =
        (struct elf_param){ .number = p.number,
                            .offset = p.offset,
                            .size = attribute->id == ELF_PARAM ? p.size >> 18 : p.size & 0xffff };
    return true;
}
