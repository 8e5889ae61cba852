/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/sites/device_code.h"

#include "core/cleanup.h"

#include <assert.h>
#include <errno.h>
#include <gelf.h>
#include <libelf.h>
#include <lz4.h>
#include <stdbool.h>
#include <string.h>
#include <zstd.h>

#define EM_CUDA_CODE 190
#define INFO         ".nv.info."
#define MAX_UNPACKED (256u << 20)

/* A header, then entries with a header each. Source: docs/architecture.md, "Old drivers"; output of nvcc 13.0. */
struct fatbin_header {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t n_bytes;
};
#define FATBIN_MAGIC 0xba55ed50u

struct fatbin_entry {
    uint16_t kind, unknown1;
    uint32_t header_bytes;
    uint64_t n_stored;
    uint32_t n_packed, unknown2;
    uint16_t minor, major;
    uint32_t arch, name_offset, n_name;
    uint64_t flags, unknown3, n_unpacked;
};
enum { ENTRY_ELF = 2, ENTRY_LZ4 = 0x2000, ENTRY_ZSTD = 0x8000 };
static_assert(sizeof(struct fatbin_header) == 16 && sizeof(struct fatbin_entry) == 64, "as stored");

static int damaged(struct err *err)
{
    return err_set(err, -EINVAL, "its machine code is damaged");
}

/* ------------------------------------------------------------------------- a cubin */

/* What the attributes of one kernel say. */
struct attributes {
    struct dmi_recording_param params[DEVICE_CODE_MAX_PARAMS];
    uint32_t n;
};

static uint32_t word(const uint8_t *p, size_t n)
{
    uint32_t value = 0;
    memcpy(&value, p, n);
    return value;
}

/* Attributes 0x17, and 0x45 of kernels with large parameters. */
static void take_attribute(struct attributes *a, uint8_t id, const uint8_t *p, size_t n)
{
    if ((id != 0x17 && id != 0x45) || n < 12)
        return;
    uint32_t number = word(p + 4, 2);
    if (number >= DEVICE_CODE_MAX_PARAMS)
        return;
    a->params[number].offset = word(p + 6, 2);
    a->params[number].size = id == 0x45 ? word(p + 8, 2) : word(p + 8, 4) >> 18;
    a->n = number + 1 > a->n ? number + 1 : a->n;
}

/* A list of u8 format, u8 attribute, u16 value; with format 4 so many bytes follow. */
static bool read_attributes(const uint8_t *p, size_t n, struct attributes *a)
{
    memset(a, 0, sizeof *a);
    while (n) {
        if (n < 4)
            return false;
        size_t more = p[0] == 4 ? word(p + 2, 2) : 0;
        if (more > n - 4)
            return false;
        take_attribute(a, p[1], p + 4, more);
        p += 4 + more;
        n -= 4 + more;
    }
    return true;
}

static void elf_endp(Elf **elf)
{
    if (*elf)
        elf_end(*elf);
}

static int read_cubin(struct err *err, Elf *elf, const struct device_code_sink *sink)
{
    size_t names;
    Elf_Scn *section = NULL;
    _cleanup_(freep) struct attributes *a = malloc(sizeof *a);
    if (!a || elf_getshdrstrndx(elf, &names))
        return damaged(err);
    while ((section = elf_nextscn(elf, section))) {
        GElf_Shdr head;
        if (!gelf_getshdr(section, &head))
            return damaged(err);
        const char *name = elf_strptr(elf, names, head.sh_name);
        if (!name || strncmp(name, INFO, strlen(INFO)) != 0)
            continue;
        Elf_Data *data = elf_getdata(section, NULL);
        if (!data || !read_attributes(data->d_buf, data->d_size, a))
            return damaged(err);
        sink->kernel(sink->ctx, name + strlen(INFO), a->params, a->n);
    }
    return 0;
}

static int read_cubin_bytes(struct err *err, const void *data, size_t n,
                            const struct device_code_sink *sink)
{
    _cleanup_(freep) void *own = malloc(n + 1); /* libelf wants to write */
    if (!own)
        return err_set(err, -ENOMEM, "no memory");
    memcpy(own, data, n);
    _cleanup_(elf_endp) Elf *elf = elf_memory(own, n);
    return elf ? read_cubin(err, elf, sink) : damaged(err);
}

/* ------------------------------------------------------------------------- a fatbin */

static int read_packed(struct err *err, const struct fatbin_entry *e, const uint8_t *stored,
                       const struct device_code_sink *sink)
{
    if (e->n_packed > e->n_stored || e->n_packed > INT32_MAX || e->n_unpacked > MAX_UNPACKED)
        return damaged(err);
    _cleanup_(freep) void *out = malloc(e->n_unpacked + 1);
    if (!out)
        return err_set(err, -ENOMEM, "no memory");
    size_t n;
    if (e->flags & ENTRY_LZ4) {
        int got =
            LZ4_decompress_safe((const char *)stored, out, (int)e->n_packed, (int)e->n_unpacked);
        n = got < 0 ? SIZE_MAX : (size_t)got;
    } else {
        n = ZSTD_decompress(out, e->n_unpacked, stored, e->n_packed);
    }
    return n > e->n_unpacked ? damaged(err) : read_cubin_bytes(err, out, n, sink);
}

/* One fatbin at the front of @data. *@used: its bytes. */
static int read_fatbin(struct err *err, const uint8_t *data, size_t n,
                       const struct device_code_sink *sink, size_t *used)
{
    struct fatbin_header head;
    if (n < sizeof head)
        return damaged(err);
    memcpy(&head, data, sizeof head);
    if (head.header_bytes < sizeof head || head.header_bytes > n ||
        head.n_bytes > n - head.header_bytes)
        return damaged(err);
    *used = head.header_bytes + (size_t)head.n_bytes;
    for (size_t at = head.header_bytes; *used - at >= sizeof(struct fatbin_entry);) {
        struct fatbin_entry e;
        memcpy(&e, data + at, sizeof e);
        if (e.header_bytes < sizeof e || e.header_bytes > *used - at ||
            e.n_stored > *used - at - e.header_bytes)
            return damaged(err);
        const uint8_t *stored = data + at + e.header_bytes;
        at += e.header_bytes + (size_t)e.n_stored;
        if (e.kind != ENTRY_ELF)
            continue;
        sink->image(sink->ctx, e.arch);
        int r = e.flags & (ENTRY_LZ4 | ENTRY_ZSTD)
                    ? read_packed(err, &e, stored, sink)
                    : read_cubin_bytes(err, stored, (size_t)e.n_stored, sink);
        if (r)
            return r;
    }
    return 0;
}

/* All fatbins of a section, which are aligned to 8 bytes. */
static int read_fatbins(struct err *err, const uint8_t *data, size_t n,
                        const struct device_code_sink *sink)
{
    for (size_t at = 0; n - at >= sizeof(struct fatbin_header);) {
        size_t used = 8;
        int r = word(data + at, 4) == FATBIN_MAGIC
                    ? read_fatbin(err, data + at, n - at, sink, &used)
                    : 0;
        if (r)
            return r;
        at += (used + 7) / 8 * 8;
        if (at > n)
            break;
    }
    return 0;
}

/* ------------------------------------------------------------------------- programs and libraries */

static int read_program(struct err *err, Elf *elf, const struct device_code_sink *sink)
{
    size_t names;
    bool any = false;
    Elf_Scn *section = NULL;
    if (elf_getshdrstrndx(elf, &names))
        return damaged(err);
    while ((section = elf_nextscn(elf, section))) {
        GElf_Shdr head;
        const char *name =
            gelf_getshdr(section, &head) ? elf_strptr(elf, names, head.sh_name) : NULL;
        if (!name || (strcmp(name, ".nv_fatbin") != 0 && strcmp(name, "__nv_relfatbin") != 0))
            continue;
        Elf_Data *data = elf_getdata(section, NULL);
        int r =
            data && data->d_buf ? read_fatbins(err, data->d_buf, data->d_size, sink) : damaged(err);
        if (r)
            return r;
        any = true;
    }
    return any ? 0 : err_set(err, -ENOENT, "it holds no machine code of kernels");
}

int device_code_read(struct err *err, const void *data, size_t n,
                     const struct device_code_sink *sink)
{
    size_t used;
    GElf_Ehdr head;
    if (n >= sizeof(struct fatbin_header) && word(data, 4) == FATBIN_MAGIC)
        return read_fatbin(err, data, n, sink, &used);
    elf_version(EV_CURRENT);
    _cleanup_(freep) void *own = malloc(n + 1);
    if (!own)
        return err_set(err, -ENOMEM, "no memory");
    memcpy(own, data, n);
    _cleanup_(elf_endp) Elf *elf = elf_memory(own, n);
    if (!elf || elf_kind(elf) != ELF_K_ELF || !gelf_getehdr(elf, &head))
        return err_set(err, -EINVAL,
                       "neither a recording, nor a cubin, fatbin, program or library");
    if (head.e_machine != EM_CUDA_CODE)
        return read_program(err, elf, sink);
    sink->image(sink->ctx, 0);
    return read_cubin(err, elf, sink);
}
