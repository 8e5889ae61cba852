/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ELF files: machine code for GPUs (a cubin), whose sections .nv.info say what its kernels take, and programs that hold fatbins.
 * Pure functions: any thread. Source: gABI; what is CUDA's own, docs/architecture.md, "Old drivers".
 */
#pragma once

#include "core/bytes.h"
#include "cupti/image/errors.h"

#define ELF_INFO                                                                                   \
    ".nv.info" /* attributes of the whole cubin; with a full stop and a kernel's name, of that kernel */
#define ELF_OF_ONE ELF_INFO "." /* the beginning of the latter */

struct elf {
    struct bytes image, sections, names; /* borrowed */
    uint64_t n_sections;
    uint16_t machine;
};

struct elf_section {
    const char *name; /* NULL: it lies outside, or has no end */
    uint32_t type, link;
    uint64_t offset, n_bytes;
};

/* Does @image begin as an ELF file does? */
bool elf_is(struct bytes image);

/* Finds its sections. Return: 0, IMAGE_E_KIND (not of 64 bits and little-endian, or without sections), IMAGE_E_BOUNDS. */
int elf_open(struct bytes image, struct elf *out);

/* Section @i of those that there are. Return: 0, IMAGE_E_END, IMAGE_E_BOUNDS. */
int elf_section(const struct elf *e, uint64_t i, struct elf_section *out);

/* The bytes of a section. Return: false where the file has not so many. */
bool elf_bytes(const struct elf *e, const struct elf_section *section, struct bytes *out);

/* The text at @offset of @strings; NULL: it lies outside, or has no end. */
const char *elf_text(struct bytes strings, uint64_t offset);

/* What a cubin says of itself, or of a kernel. */
enum elf_attribute_id {
    ELF_STACK = 0x11, /* u32 symbol, u32 bytes a thread */
    ELF_PARAM = 0x17,
    ELF_PARAM_BYTES = 0x19, /* the value: bytes of all parameters */
    ELF_REGISTERS = 0x2f,   /* u32 symbol, u32 registers a thread */
    ELF_PARAM_LARGE = 0x45, /* of a kernel whose parameters take more than 4 KiB */
};

struct elf_attribute {
    uint8_t format, id;
    uint16_t value;
    struct bytes bytes; /* that follow it */
};

/* Takes an attribute from the front of a list. Return: false: there is none, or, with bytes left, the list is damaged. */
bool elf_next_attribute(struct bytes *list, struct elf_attribute *out);

struct elf_param {
    uint32_t number, offset, size; /* bytes */
};

/* What ELF_PARAM and ELF_PARAM_LARGE say. Return: false: they are too short. */
bool elf_param(const struct elf_attribute *attribute, struct elf_param *out);
