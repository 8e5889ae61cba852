/* SPDX-License-Identifier: Apache-2.0 */
#include "cupti/cubin.h"

#include "core/cleanup.h"
#include "core/grow.h"
#include "core/sorted.h"

#include <assert.h>
#include <errno.h>
#include <gelf.h>
#include <libelf.h>
#include <lz4.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#define EM_CUDA_CODE 190
#define ALL_INFO     ".nv.info"
#define INFO         ".nv.info."
#define SHARED       ".nv.shared."
#define RESERVED                                                                                   \
    ".nv.shared.reserved.0" /* then the sections before hold what CUDA keeps of each block, */
#define N_RESERVED   1024u  /* so many bytes; seen from sm_90 on */
#define CONSTANT     ".nv.constant" /* and the number of the bank, and ".KERNEL" */
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
    struct dmi_recording_param params[CUBIN_MAX_PARAMS];
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
    if (number >= CUBIN_MAX_PARAMS)
        return;
    a->params[number].offset = word(p + 6, 2);
    a->params[number].size = id == 0x45 ? word(p + 8, 2) : word(p + 8, 4) >> 18;
    a->n = number + 1 > a->n ? number + 1 : a->n;
}

/* The next of a list of u8 format, u8 attribute, u16 value; with format 4 so many bytes follow. */
struct attribute {
    uint8_t id;
    const uint8_t *p; /* @n bytes */
    size_t n;
};

/* Takes one from the front of @list. Return: false: there is none, or, with bytes left, the list is damaged. */
static bool next_attribute(const uint8_t **list, size_t *n, struct attribute *out)
{
    const uint8_t *p = *list;
    size_t more = *n >= 4 && p[0] == 4 ? word(p + 2, 2) : 0;
    if (*n < 4 || more > *n - 4)
        return false;
    *out = (struct attribute){ p[1], p + 4, more };
    *list += 4 + more;
    *n -= 4 + more;
    return true;
}

/* Return: false: damaged. */
static bool read_attributes(const uint8_t *list, size_t n, struct attributes *a)
{
    struct attribute one;
    memset(a, 0, sizeof *a);
    while (next_attribute(&list, &n, &one))
        take_attribute(a, one.id, one.p, one.n);
    return !n;
}

static void elf_endp(Elf **elf)
{
    if (*elf)
        elf_end(*elf);
}

/* Something that a cubin says of one of its kernels. */
struct fact {
    const char *kernel; /* in the cubin's strings */
    enum { FACT_REGISTERS, FACT_LOCAL, FACT_SHARED, FACT_CONSTANT } what;
    uint32_t bank;
    uint64_t value;
};

struct facts {
    struct fact *all;
    size_t n, room;
    bool reserves; /* there is RESERVED */
    bool failed;   /* no memory */
};

static void facts_deinit(struct facts *f)
{
    free(f->all);
}

static void add_fact(struct facts *f, const struct fact *fact)
{
    if (!f->failed && !(f->failed = GROW(f->all, f->n, f->room)))
        f->all[f->n++] = *fact;
}

static int by_kernel(const void *pa, const void *pb)
{
    const struct fact *a = pa, *b = pb;
    return strcmp(a->kernel, b->kernel);
}

/* Sections that are one kernel's own. */
static void take_section(struct facts *f, const char *name, uint64_t n_bytes)
{
    struct fact fact = { .value = n_bytes };
    char *end;
    if (!strncmp(name, SHARED, strlen(SHARED))) {
        fact.what = FACT_SHARED;
        fact.kernel = name + strlen(SHARED);
    } else if (!strncmp(name, CONSTANT, strlen(CONSTANT))) {
        unsigned long bank = strtoul(name + strlen(CONSTANT), &end, 10);
        if (*end != '.' || bank >= CUBIN_BANKS)
            return;
        fact.what = FACT_CONSTANT;
        fact.bank = (uint32_t)bank;
        fact.kernel = end + 1;
    } else {
        return;
    }
    add_fact(f, &fact);
}

/* The symbols that attributes of the whole cubin name by number. */
struct symbols {
    Elf *elf;
    Elf_Data *data; /* NULL: there are none */
    size_t strings; /* section */
};

/* Attributes 0x2f and 0x11: a symbol's number, and its registers or its bytes of stack. */
static void take_usage(struct facts *f, const struct symbols *s, uint8_t id, const uint8_t *p,
                       size_t n)
{
    GElf_Sym symbol;
    if ((id != 0x2f && id != 0x11) || n < 8 || !s->data ||
        !gelf_getsym(s->data, (int)(word(p, 4) & INT32_MAX), &symbol))
        return;
    const struct fact fact = { .kernel = elf_strptr(s->elf, s->strings, symbol.st_name),
                               .what = id == 0x2f ? FACT_REGISTERS : FACT_LOCAL,
                               .value = word(p + 4, 4) };
    if (fact.kernel)
        add_fact(f, &fact);
}

/* Return: false: damaged. */
static bool read_usage(struct facts *f, const struct symbols *s, const Elf_Data *info)
{
    const uint8_t *list = info->d_buf;
    size_t n = info->d_size;
    struct attribute one;
    while (next_attribute(&list, &n, &one))
        take_usage(f, s, one.id, one.p, one.n);
    return !n;
}

/* What the cubin says of all its kernels, in the order of their names. */
static int find_facts(struct err *err, Elf *elf, size_t names, struct facts *f)
{
    struct symbols symbols = { .elf = elf };
    Elf_Data *info = NULL;
    for (Elf_Scn *section = NULL; (section = elf_nextscn(elf, section));) {
        GElf_Shdr head;
        const char *name =
            gelf_getshdr(section, &head) ? elf_strptr(elf, names, head.sh_name) : NULL;
        if (!name)
            return damaged(err);
        f->reserves |= !strcmp(name, RESERVED);
        take_section(f, name, head.sh_size);
        if (!strcmp(name, ALL_INFO))
            info = elf_getdata(section, NULL);
        if (head.sh_type == SHT_SYMTAB) {
            symbols.data = elf_getdata(section, NULL);
            symbols.strings = head.sh_link;
        }
    }
    if (info && !read_usage(f, &symbols, info))
        return damaged(err);
    SORT(f->all, f->n, by_kernel);
    return f->failed ? err_set(err, -ENOMEM, "no memory") : 0;
}

/* The bytes of a kernel's section, less those that CUDA keeps there. */
static uint64_t own_shared(const struct facts *f, uint64_t n_bytes)
{
    uint64_t n_reserved = f->reserves ? N_RESERVED : 0;
    return n_bytes > n_reserved ? n_bytes - n_reserved : 0;
}

static void add_facts(const struct facts *f, struct cubin_kernel *k)
{
    size_t i;
    SEARCH(i, f->n, strcmp(f->all[i].kernel, k->name) < 0);
    for (; i < f->n && !strcmp(f->all[i].kernel, k->name); i++) {
        const struct fact *fact = &f->all[i];
        switch (fact->what) {
        case FACT_REGISTERS: k->registers = (uint32_t)fact->value; break;
        case FACT_LOCAL: k->local = (uint32_t)fact->value; break;
        case FACT_SHARED: k->shared = own_shared(f, fact->value); break;
        case FACT_CONSTANT: k->constant[fact->bank] = fact->value; break;
        }
    }
}

static int read_cubin(struct err *err, Elf *elf, const struct cubin_sink *sink)
{
    size_t names;
    Elf_Scn *section = NULL;
    _cleanup_(facts_deinit) struct facts facts = { 0 };
    _cleanup_(freep) struct attributes *a = malloc(sizeof *a);
    if (!a || elf_getshdrstrndx(elf, &names))
        return damaged(err);
    int r = find_facts(err, elf, names, &facts);
    while (!r && (section = elf_nextscn(elf, section))) {
        GElf_Shdr head;
        if (!gelf_getshdr(section, &head))
            return damaged(err);
        const char *name = elf_strptr(elf, names, head.sh_name);
        if (!name || strncmp(name, INFO, strlen(INFO)) != 0)
            continue;
        Elf_Data *data = elf_getdata(section, NULL);
        if (!data || !read_attributes(data->d_buf, data->d_size, a))
            return damaged(err);
        struct cubin_kernel kernel = { .name = name + strlen(INFO),
                                       .params = a->params,
                                       .n_params = a->n,
                                       .registers = CUBIN_UNKNOWN,
                                       .local = CUBIN_UNKNOWN };
        add_facts(&facts, &kernel);
        sink->kernel(sink->ctx, &kernel);
    }
    return r;
}

static int read_cubin_bytes(struct err *err, const void *data, size_t n,
                            const struct cubin_sink *sink)
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
                       const struct cubin_sink *sink)
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
                       const struct cubin_sink *sink, size_t *used)
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
                        const struct cubin_sink *sink)
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

static int read_program(struct err *err, Elf *elf, const struct cubin_sink *sink)
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

int cubin_read(struct err *err, const void *data, size_t n, const struct cubin_sink *sink)
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
