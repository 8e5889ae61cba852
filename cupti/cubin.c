/* SPDX-License-Identifier: Apache-2.0 */
#include "cupti/cubin.h"

#include "core/cleanup.h"
#include "core/grow.h"
#include "core/sorted.h"
#include "cupti/image/elf.h"
#include "cupti/image/fatbin.h"

#include <elf.h>
#include <errno.h>
#include <stdlib.h>

#define SHARED ".nv.shared."
#define RESERVED                                                                                   \
    ".nv.shared.reserved.0"       /* then the sections before hold what CUDA keeps of each block, */
#define N_RESERVED 1024u          /* so many bytes; seen from sm_90 on */
#define CONSTANT   ".nv.constant" /* and the number of the bank, and ".KERNEL" */

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

static void take_param(struct attributes *a, const struct elf_attribute *attribute)
{
    struct elf_param p;
    if ((attribute->id != ELF_PARAM && attribute->id != ELF_PARAM_LARGE) ||
        !elf_param(attribute, &p) || p.number >= CUBIN_MAX_PARAMS)
        return;
    a->params[p.number].offset = p.offset;
    a->params[p.number].size = p.size;
    a->n = p.number + 1 > a->n ? p.number + 1 : a->n;
}

/* Return: false: damaged. */
static bool read_attributes(struct bytes list, struct attributes *a)
{
    struct elf_attribute one;
    memset(a, 0, sizeof *a);
    while (elf_next_attribute(&list, &one))
        take_param(a, &one);
    return !list.n;
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

/* The symbols that attributes of the whole cubin name by number, and their names. */
struct symbols {
    struct bytes all, strings;
};

/* The name of symbol @i; NULL: it has none. */
static const char *symbol_name(const struct symbols *s, uint32_t i)
{
    Elf64_Sym symbol;
    bool is = bytes_read(s->all, i * (uint64_t)sizeof symbol, &symbol, sizeof symbol);
    return is ? elf_text(s->strings, symbol.st_name) : NULL;
}

static void take_usage(struct facts *f, const struct symbols *s, const struct elf_attribute *a)
{
    uint32_t words[2]; /* the symbol's number, and how much */
    if ((a->id != ELF_REGISTERS && a->id != ELF_STACK) ||
        !bytes_read(a->bytes, 0, words, sizeof words))
        return;
    const struct fact fact = { .kernel = symbol_name(s, words[0]),
                               .what = a->id == ELF_REGISTERS ? FACT_REGISTERS : FACT_LOCAL,
                               .value = words[1] };
    if (fact.kernel)
        add_fact(f, &fact);
}

/* Return: false: damaged. */
static bool read_usage(struct facts *f, const struct symbols *s, struct bytes list)
{
    struct elf_attribute one;
    while (elf_next_attribute(&list, &one))
        take_usage(f, s, &one);
    return !list.n;
}

/* Return: false: they lie outside. */
static bool find_symbols(const struct elf *elf, const struct elf_section *table, struct symbols *s)
{
    struct elf_section strings;
    return !elf_section(elf, table->link, &strings) && elf_bytes(elf, &strings, &s->strings) &&
           elf_bytes(elf, table, &s->all);
}

/* What the cubin says of all its kernels, in the order of their names. */
static int find_facts(struct err *err, const struct elf *elf, struct facts *f)
{
    struct symbols symbols = { 0 };
    struct bytes info = { 0 };
    struct elf_section section;
    for (uint64_t i = 0; !elf_section(elf, i, &section); i++) {
        if (!section.name)
            return damaged(err);
        f->reserves |= !strcmp(section.name, RESERVED);
        take_section(f, section.name, section.n_bytes);
        if ((!strcmp(section.name, ELF_INFO) && !elf_bytes(elf, &section, &info)) ||
            (section.type == SHT_SYMTAB && !find_symbols(elf, &section, &symbols)))
            return damaged(err);
    }
    if (!read_usage(f, &symbols, info))
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

/* @info: the section that describes a kernel */
static int read_kernel(struct err *err, const struct elf *elf, const struct elf_section *info,
                       const struct facts *facts, const struct cubin_sink *sink)
{
    struct bytes list;
    _cleanup_(freep) struct attributes *a = malloc(sizeof *a);
    if (!a)
        return err_set(err, -ENOMEM, "no memory");
    if (!elf_bytes(elf, info, &list) || !read_attributes(list, a))
        return damaged(err);
    struct cubin_kernel kernel = { .name = info->name + strlen(ELF_OF_ONE),
                                   .params = a->params,
                                   .n_params = a->n,
                                   .registers = CUBIN_UNKNOWN,
                                   .local = CUBIN_UNKNOWN };
    add_facts(facts, &kernel);
    sink->kernel(sink->ctx, &kernel);
    return 0;
}

static int read_cubin(struct err *err, const struct elf *elf, const struct cubin_sink *sink)
{
    struct elf_section section;
    _cleanup_(facts_deinit) struct facts facts = { 0 };
    int r = find_facts(err, elf, &facts);
    for (uint64_t i = 0; !r && !elf_section(elf, i, &section); i++)
        if (!strncmp(section.name, ELF_OF_ONE, strlen(ELF_OF_ONE)))
            r = read_kernel(err, elf, &section, &facts, sink);
    return r;
}

/* ------------------------------------------------------------------------- a fatbin */

static int read_entry(struct err *err, const struct fatbin_entry *entry,
                      const struct cubin_sink *sink)
{
    _cleanup_(freep) unsigned char *own;
    struct bytes code;
    struct elf elf;
    int r = fatbin_code(entry, &code, &own);
    r = r ? r : elf_is(code) ? elf_open(code, &elf) : IMAGE_E_KIND;
    if (r)
        return r == -ENOMEM ? err_set(err, r, "no memory") : damaged(err);
    return read_cubin(err, &elf, sink);
}

/* One fatbin at the front of @data. *@used: its bytes. */
static int read_fatbin(struct err *err, struct bytes data, const struct cubin_sink *sink,
                       uint64_t *used)
{
    struct bytes entries;
    struct fatbin_entry entry;
    int r = fatbin_open(data, &entries);
    if (!r)
        *used = (uint64_t)(entries.at - data.at) + entries.n;
    while (!r && !(r = fatbin_next(&entries, &entry))) {
        if (entry.kind != FATBIN_ELF)
            continue;
        sink->image(sink->ctx, entry.arch);
        if (read_entry(err, &entry, sink))
            return err->code;
    }
    return r == IMAGE_E_END ? 0 : damaged(err);
}

/* All fatbins of a section, which are aligned to 8 bytes. */
static int read_fatbins(struct err *err, struct bytes section, const struct cubin_sink *sink)
{
    struct bytes rest;
    for (uint64_t at = 0; at < section.n && bytes_cut(section, at, section.n - at, &rest);) {
        uint64_t used = 8;
        if (fatbin_is(rest) && read_fatbin(err, rest, sink, &used))
            return err->code;
        at += (used + 7) / 8 * 8;
    }
    return 0;
}

/* ------------------------------------------------------------------------- programs and libraries */

static int read_program(struct err *err, const struct elf *elf, const struct cubin_sink *sink)
{
    bool any = false;
    struct elf_section section;
    struct bytes bytes;
    for (uint64_t i = 0; !elf_section(elf, i, &section); i++) {
        if (!section.name || (strcmp(section.name, ".nv_fatbin") != 0 &&
                              strcmp(section.name, "__nv_relfatbin") != 0))
            continue;
        if (!elf_bytes(elf, &section, &bytes))
            return damaged(err);
        if (read_fatbins(err, bytes, sink))
            return err->code;
        any = true;
    }
    return any ? 0 : err_set(err, -ENOENT, "it holds no machine code of kernels");
}

int cubin_read(struct err *err, const void *data, size_t n, const struct cubin_sink *sink)
{
    const struct bytes file = { data, n };
    struct elf elf;
    uint64_t used;
    if (fatbin_is(file))
        return read_fatbin(err, file, sink, &used);
    if (!elf_is(file))
        return err_set(err, -EINVAL,
                       "neither a recording, nor a cubin, fatbin, program or library");
    int r = elf_open(file, &elf);
    if (r == IMAGE_E_KIND)
        return err_set(err, -ENOENT, "it holds no machine code of kernels");
    if (r)
        return damaged(err);
    if (elf.machine != EM_CUDA)
        return read_program(err, &elf, sink);
    sink->image(sink->ctx, 0);
    return read_cubin(err, &elf, sink);
}
