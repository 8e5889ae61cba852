/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where parameters lie, read from what nvcc makes (preload/image/): machine code for every device that it knows, PTX,
 * and fatbins in each way of compression, all of images.cu. What the reader finds in machine code must be what libelf,
 * which the library may not use, leads to. test_image FOLDER CORPUS: of make_images.py, tests/fuzz/corpus/image.
 */
#include "core/cleanup.h"
#include "preload/image/image.h"

#include <check.h>
#include <elf.h>
#include <fcntl.h>
#include <gelf.h>
#include <glob.h>
#include <libelf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char *folder, *corpus;

/* ---- what is in images.cu ---- */

struct truth {
    const char *name;
    uint32_t n;
    struct param_place at[8];
};
static const struct truth truths[] = {
    { "none", 0, { { 0 } } },
    { "mixed",
      8,
      { { 0, 1 }, { 2, 2 }, { 4, 1 }, { 8, 8 }, { 16, 3 }, { 32, 32 }, { 64, 1 }, { 72, 8 } } },
    { "constant", 2, { { 0, 32 }, { 32, 8 } } },
    { "large", 3, { { 0, 8 }, { 8, 5000 }, { 5008, 4 } } },
    { "_Z5namedIfEvPT_i5threed", 4, { { 0, 8 }, { 8, 4 }, { 12, 12 }, { 24, 8 } } },
};
#define N_TRUTHS  (sizeof truths / sizeof truths[0])
#define N_KERNELS (N_TRUTHS + 1) /* and `many` */

/* ---- what was found ---- */

struct found {
    unsigned n;
    struct {
        char *name;
        struct params_layout *layout;
    } at[64];
};

static void note(void *ctx, const char *name, size_t n_name, const struct param_place *at,
                 uint32_t n)
{
    struct found *f = ctx;
    ck_assert_uint_lt(f->n, 64);
    ck_assert(n_name > 0 && !memchr(name, 0, n_name));
    f->at[f->n].name = strndup(name, n_name);
    f->at[f->n++].layout = layout_new(at, n);
}

static void found_deinit(struct found *f)
{
    for (unsigned i = 0; i < f->n; i++) {
        free(f->at[i].name);
        free(f->at[i].layout);
    }
}

#define FOUND(name)                                                                                \
    _cleanup_(found_deinit) struct found name = { 0 };                                             \
    const struct layout_sink name##_sink = { note, &name }

static const struct params_layout *layout_of(const struct found *f, const char *name)
{
    for (unsigned i = 0; i < f->n; i++)
        if (!strcmp(f->at[i].name, name))
            return f->at[i].layout;
    return NULL;
}

static bool same(const struct params_layout *l, const struct param_place *at, uint32_t n)
{
    return l->n == n && !memcmp(l->at, at, n * sizeof *at);
}

/* 256 characters, and a pointer that a spec cannot name. */
static bool is_many(const struct params_layout *l)
{
    bool right = l->n == LAYOUT_MAX_PARAMS;
    for (uint32_t i = 0; right && i < l->n; i++)
        right = l->at[i].offset == i && l->at[i].size == 1;
    return right;
}

static bool is_true(const char *name, const struct params_layout *l)
{
    for (size_t i = 0; i < N_TRUTHS; i++)
        if (!strcmp(truths[i].name, name))
            return same(l, truths[i].at, truths[i].n);
    return !strcmp(name, "many") && is_many(l);
}

/* Each kernel of images.cu, @times over, and nothing else. */
static void expect_all(const struct found *f, unsigned times, const char *what)
{
    ck_assert_msg(f->n == times * N_KERNELS, "%s: %u kernels", what, f->n);
    for (unsigned i = 0; i < f->n; i++)
        ck_assert_msg(is_true(f->at[i].name, f->at[i].layout), "%s: %s is not where it is", what,
                      f->at[i].name);
    for (size_t i = 0; times && i < N_TRUTHS; i++)
        ck_assert_msg(layout_of(f, truths[i].name), "%s lacks %s", what, truths[i].name);
}

/* ---- files ---- */

struct file {
    unsigned char *bytes; /* exactly as long as the file: a sanitizer sees a read past its end */
    size_t n;
};

static void file_deinit(struct file *file)
{
    free(file->bytes);
}

static struct file load(const char *name)
{
    char path[4096];
    struct stat st;
    snprintf(path, sizeof path, "%s%s%s", name[0] == '/' ? "" : folder, name[0] == '/' ? "" : "/",
             name);
    _cleanup_(fclosep) FILE *f = fopen(path, "rb");
    ck_assert_msg(f && !fstat(fileno(f), &st), "%s", path);
    struct file file = { malloc((size_t)st.st_size), (size_t)st.st_size };
    ck_assert(file.bytes && fread(file.bytes, 1, file.n, f) == file.n);
    return file;
}

/* ---- machine code, by ours and by libelf ---- */

/* As NVIDIA's attributes go: docs/architecture.md, "Old drivers". */
static void note_by_libelf(Elf_Scn *section, const char *kernel, struct found *f)
{
    struct param_place at[512] = { 0 };
    uint32_t n = 0;
    Elf_Data *data = elf_getdata(section, NULL);
    ck_assert_ptr_nonnull(data);
    const unsigned char *p = data->d_buf, *end = p + data->d_size;
    while (p < end) {
        unsigned format = p[0], attribute = p[1], value = p[2] | p[3] << 8;
        p += 4;
        if (format != 4)
            continue;
        unsigned ordinal = p[4] | p[5] << 8, offset = p[6] | p[7] << 8;
        if (attribute == 0x17)
            at[ordinal] = (struct param_place){
                offset, (unsigned)(p[8] | p[9] << 8 | p[10] << 16 | p[11] << 24) >> 18
            };
        if (attribute == 0x45)
            at[ordinal] = (struct param_place){ offset, p[8] | p[9] << 8 };
        if ((attribute == 0x17 || attribute == 0x45) && ordinal >= n)
            n = ordinal + 1;
        p += value;
    }
    note(f, kernel, strlen(kernel), at, n < LAYOUT_MAX_PARAMS ? n : LAYOUT_MAX_PARAMS);
}

static void read_by_libelf(const struct file *file, struct found *f)
{
    size_t names;
    Elf_Scn *section = NULL;
    elf_version(EV_CURRENT);
    Elf *elf = elf_memory((char *)file->bytes, file->n);
    ck_assert(elf && !elf_getshdrstrndx(elf, &names));
    while ((section = elf_nextscn(elf, section))) {
        GElf_Shdr head;
        ck_assert_ptr_nonnull(gelf_getshdr(section, &head));
        const char *name = elf_strptr(elf, names, head.sh_name);
        if (!strncmp(name, ".nv.info.", 9))
            note_by_libelf(section, name + 9, f);
    }
    elf_end(elf);
}

START_TEST(machine_code_for_every_device_reads_as_libelf_does)
{
    glob_t paths;
    char pattern[4096];
    snprintf(pattern, sizeof pattern, "%s/sm_*.cubin", folder);
    ck_assert_int_eq(glob(pattern, 0, NULL, &paths), 0);
    ck_assert_uint_ge(paths.gl_pathc, 5);
    for (size_t i = 0; i < paths.gl_pathc; i++) {
        _cleanup_(file_deinit) struct file file = load(paths.gl_pathv[i]);
        FOUND(ours);
        FOUND(theirs);
        (void)theirs_sink;
        ck_assert_int_eq(image_read(file.bytes, file.n, 0, &ours_sink), 0);
        expect_all(&ours, 1, paths.gl_pathv[i]);
        read_by_libelf(&file, &theirs);
        ck_assert_uint_eq(ours.n, theirs.n);
        for (unsigned k = 0; k < ours.n; k++)
            ck_assert(!strcmp(ours.at[k].name, theirs.at[k].name) &&
                      same(ours.at[k].layout, theirs.at[k].layout->at, theirs.at[k].layout->n));
    }
    globfree(&paths);
}
END_TEST

/* What ptxas of CUDA 11.8, 12.2 and 13.0 made of one kernel: k(char, struct of three ints, pointer). */
START_TEST(machine_code_of_older_compilers_reads_the_same)
{
    static const char *const names[] = { "cuda-11.8-sm_90", "cuda-12.2-sm_80", "cuda-13.0-sm_80",
                                         "cuda-13.0-sm_100" };
    static const struct param_place at[] = { { 0, 1 }, { 4, 12 }, { 16, 8 } };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/seed-%s.cubin", corpus, names[i]);
        _cleanup_(file_deinit) struct file file = load(path);
        FOUND(f);
        ck_assert_int_eq(image_read(file.bytes, file.n, 0, &f_sink), 0);
        ck_assert_msg(f.n == 1 && !strcmp(f.at[0].name, "k") && same(f.at[0].layout, at, 3), "%s",
                      names[i]);
    }
}
END_TEST

START_TEST(text_says_the_same)
{
    _cleanup_(file_deinit) struct file file = load("text.ptx");
    FOUND(f);
    ck_assert_int_eq(image_read(file.bytes, file.n, 0, &f_sink), 0);
    expect_all(&f, 1, "text.ptx");
}
END_TEST

static const char *const fatbins[] = { "fat_none.fatbin", "fat_balance.fatbin", "fat_size.fatbin",
                                       "fat_speed.fatbin", "fat_lz4.fatbin" };

/* Machine code for sm_80 and sm_90, and PTX for 75 and newer. */
START_TEST(fatbins_say_the_same_however_they_are_compressed)
{
    static const struct {
        uint32_t arch;
        unsigned entries;
    } rows[] = { { 0, 3 }, { 70, 0 }, { 75, 1 }, { 80, 2 }, { 86, 2 }, { 90, 2 }, { 100, 1 } };
    _cleanup_(file_deinit) struct file file = load(fatbins[_i]);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        FOUND(f);
        ck_assert_int_eq(image_read(file.bytes, file.n, rows[i].arch, &f_sink), 0);
        expect_all(&f, rows[i].entries, fatbins[_i]);
    }
}
END_TEST

START_TEST(images_in_memory_need_no_length)
{
    static const struct {
        const char *name;
        unsigned entries;
    } rows[] = { { "sm_80.cubin", 1 },
                 { "sm_90.cubin", 1 },
                 { "text.ptx", 1 },
                 { "fat_none.fatbin", 3 },
                 { "fat_lz4.fatbin", 3 } };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        _cleanup_(file_deinit) struct file file = load(rows[i].name);
        bool text = strstr(rows[i].name, ".ptx");
        unsigned char *ended = realloc(file.bytes, file.n + text);
        ck_assert_ptr_nonnull(ended);
        if (text)
            ended[file.n] = 0;
        file.bytes = ended;
        struct {
            uint32_t magic, version;
            const void *data, *more;
        } wrapper = { 0x466243b1, 1, file.bytes, NULL };
        FOUND(f);
        ck_assert_int_eq(image_read_loaded(file.bytes, 0, &f_sink), 0);
        expect_all(&f, rows[i].entries, rows[i].name);
        FOUND(w);
        ck_assert_int_eq(image_read_loaded(&wrapper, 0, &w_sink), 0);
        expect_all(&w, rows[i].entries, "in a wrapper");
    }
}
END_TEST

/* ---- images that are not what they say ---- */

START_TEST(short_and_foreign_images_are_refused)
{
    static const char *const rows[] = {
        "\x7f", "\x7f\x45LF", "\x50\xed\x55\xba", "\xb1\x43\x62\x46", "\xff\xfe\xfd\xfc\xfb", ""
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        FOUND(f);
        ck_assert_int_gt(image_read(rows[i], strlen(rows[i]), 0, &f_sink), 0);
        ck_assert_uint_eq(f.n, 0);
    }
    FOUND(f);
    struct {
        uint32_t magic, version;
        const void *data, *more;
    } wrapper = { 0x466243b1, 1, NULL, NULL };
    ck_assert_int_eq(image_read_loaded(&wrapper, 0, &f_sink), IMAGE_E_KIND);
    ck_assert_int_eq(image_read_loaded("\x7f", 0, &f_sink), IMAGE_E_KIND);
    ck_assert_int_eq(image_read_loaded("", 0, &f_sink), IMAGE_E_KIND);
}
END_TEST

static const char *const whole[] = { "sm_75.cubin",     "sm_100.cubin",    "text.ptx",
                                     "fat_none.fatbin", "fat_size.fatbin", "fat_lz4.fatbin" };

/* At whatever byte it ends: nothing beyond is read, and what is said of kernels still holds for text alone by chance. */
START_TEST(cut_images_are_read_as_far_as_they_go)
{
    _cleanup_(file_deinit) struct file file = load(whole[_i]);
    bool text = strstr(whole[_i], ".ptx");
    for (size_t n = 0; n < file.n; n += n < 2048 ? 1 : 61) {
        _cleanup_(freep) unsigned char *cut = malloc(n ? n : 1);
        memcpy(cut, file.bytes, n);
        FOUND(f);
        int r = image_read(cut, n, 0, &f_sink);
        ck_assert(r >= 0 && f.n <= 3 * N_KERNELS);
        for (unsigned i = 0; i < f.n && !text; i++)
            ck_assert_msg(is_true(f.at[i].name, f.at[i].layout), "%s at %zu", whole[_i], n);
    }
}
END_TEST

/* Whatever is damaged: what is said can be, and nothing outside is read. */
START_TEST(damaged_images_give_layouts_that_can_be)
{
    _cleanup_(file_deinit) struct file file = load(whole[_i]);
    uint64_t seed = 88172645463325252u + (uint64_t)_i;
    for (int round = 0; round < 500; round++) {
        struct {
            size_t at;
            unsigned char was;
        } changed[4];
        for (int i = 0; i < 4; i++) {
            seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
            changed[i].at = (round % 2 ? seed % 512 : seed) % file.n;
            changed[i].was = file.bytes[changed[i].at];
            file.bytes[changed[i].at] = (unsigned char)(seed >> 40);
        }
        FOUND(f);
        image_read(file.bytes, file.n, 0, &f_sink);
        for (unsigned k = 0; k < f.n; k++)
            for (uint32_t i = 0, end = 0; i < f.at[k].layout->n; i++) {
                const struct param_place *p = &f.at[k].layout->at[i];
                ck_assert(p->offset >= end && p->offset + p->size <= LAYOUT_MAX_BYTES);
                end = p->offset + p->size;
            }
        for (int i = 4; i-- > 0;)
            file.bytes[changed[i].at] = changed[i].was;
    }
}
END_TEST

/* The description of `mixed` in machine code, changed in one place. */
START_TEST(descriptions_that_contradict_themselves_are_no_layout)
{
    static const unsigned char first[] = { 4, 0x17, 12, 0, 0, 0, 0, 0, 7, 0, 72, 0 };
    static const struct {
        unsigned at;
        unsigned char value;
        bool holds;
    } rows[] = {
        { 10, 73, false }, /* it ends beyond all parameters */
        { 10, 64, false }, /* it lies on the one before */
        { 10, 65, true },  /* it does not, though no compiler would put it there */
        { 8, 6, false },   /* the same one twice, and one is missing */
        { 8, 9, false },   /* one is missing */
        { 2, 8, false },   /* its description is too short */
        { 0, 5, false },   /* a format that nobody knows */
        { 0, 3, false },   /* the value of another format: what follows is read as attributes */
    };
    _cleanup_(file_deinit) struct file file = load("sm_80.cubin");
    unsigned char *place = memmem(file.bytes, file.n, first, sizeof first);
    ck_assert_ptr_nonnull(place);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        unsigned char was = place[rows[i].at];
        FOUND(f);
        place[rows[i].at] = rows[i].value;
        ck_assert_int_eq(image_read(file.bytes, file.n, 0, &f_sink), 0);
        place[rows[i].at] = was;
        ck_assert_msg(!layout_of(&f, "mixed") == !rows[i].holds, "row %zu", i);
        ck_assert_ptr_nonnull(layout_of(&f, "constant"));
    }
}
END_TEST

static Elf64_Shdr *section_of(const struct file *file, const char *name)
{
    Elf64_Ehdr *head = (Elf64_Ehdr *)file->bytes;
    Elf64_Shdr *sections = (Elf64_Shdr *)(file->bytes + head->e_shoff);
    const char *names = (const char *)file->bytes + sections[head->e_shstrndx].sh_offset;
    for (unsigned i = 0; i < head->e_shnum; i++)
        if (!strcmp(names + sections[i].sh_name, name))
            return &sections[i];
    ck_abort_msg("no section %s", name);
}

/* The description of `mixed` ends with the file, wherever it is cut: once it says that there are parameters, they are there. */
START_TEST(descriptions_are_not_read_past_their_end)
{
    _cleanup_(file_deinit) struct file file = load("sm_80.cubin");
    Elf64_Shdr *section = section_of(&file, ".nv.info.mixed");
    size_t at = section->sh_offset, n_all = section->sh_size;
    static const unsigned char total[] = { 3, 0x19, 80, 0 };
    const unsigned char *place = memmem(file.bytes + at, n_all, total, sizeof total);
    size_t told = (size_t)(place - (file.bytes + at)) + sizeof total;
    ck_assert_ptr_nonnull(place);
    for (size_t n = 0; n < n_all; n++) {
        section->sh_offset = file.n;
        section->sh_size = n;
        _cleanup_(freep) unsigned char *cut = malloc(file.n + n);
        memcpy(cut, file.bytes, file.n);
        memcpy(cut + file.n, file.bytes + at, n);
        FOUND(f);
        ck_assert_int_eq(image_read(cut, file.n + n, 0, &f_sink), 0);
        const struct params_layout *mixed = layout_of(&f, "mixed");
        ck_assert_msg(!mixed || (n < told && !mixed->n) || is_true("mixed", mixed), "cut at %zu",
                      n);
        ck_assert_ptr_nonnull(layout_of(&f, "constant"));
    }
}
END_TEST

/* Over 65,279 sections their number stands in the first one. */
START_TEST(section_counts_may_stand_in_the_first_section)
{
    _cleanup_(file_deinit) struct file file = load("sm_80.cubin");
    Elf64_Ehdr *head = (Elf64_Ehdr *)file.bytes;
    Elf64_Shdr *first = (Elf64_Shdr *)(file.bytes + head->e_shoff);
    first->sh_size = head->e_shnum;
    first->sh_link = head->e_shstrndx;
    head->e_shnum = 0;
    head->e_shstrndx = SHN_XINDEX;
    FOUND(f);
    ck_assert_int_eq(image_read(file.bytes, file.n, 0, &f_sink), 0);
    expect_all(&f, 1, "counts in the first section");
    first->sh_size = UINT64_MAX / sizeof *first + 2;
    ck_assert_int_eq(image_read(file.bytes, file.n, 0, &f_sink), IMAGE_E_BOUNDS);
    first->sh_size = 1ull << 40;
    ck_assert_int_eq(image_read(file.bytes, file.n, 0, &f_sink), IMAGE_E_BOUNDS);
}
END_TEST

/* ---- text ---- */

START_TEST(heads_of_kernels_in_text)
{
    static const struct {
        const char *text;
        int n; /* -1: no kernel */
        struct param_place at[4];
    } rows[] = {
        { ".entry k", 0, { { 0 } } },
        { ".visible .entry k() { ret; }", 0, { { 0 } } },
        { ".entry k .maxntid 32 { }", 0, { { 0 } } },
        { ".weak .entry k(.param .u32 a)", 1, { { 0, 4 } } },
        { ".entry k(.param .b8 a, .param .f64 b, .param .s16 c)",
          3,
          { { 0, 1 }, { 8, 8 }, { 16, 2 } } },
        { ".entry k ( .param .u64 .ptr .global .align 1 a , .param .u32 b )",
          2,
          { { 0, 8 }, { 8, 4 } } },
        { ".entry k(.param .b8 a, .param .u64 .ptr .align 16 b)", 2, { { 0, 1 }, { 8, 8 } } },
        { ".entry k(.param .u8 a, .param .align 16 .b8 b[20], .param .u32 c)",
          3,
          { { 0, 1 }, { 16, 20 }, { 36, 4 } } },
        { ".entry k(.param .u32 a[2][3], .param .u8 b[0x10])", 2, { { 0, 24 }, { 24, 16 } } },
        { ".entry k(.param .align 4 .b8 a[3U])", 1, { { 0, 3 } } },
        { "/* .entry no() */ // .entry no()\n.file 1 \".entry no()\"\n.entry /* ( */ k // "
          ")\n(\n.param .u32 a\n)",
          1,
          { { 0, 4 } } },
        { ".entry k(.param .f16x2 a, .param .bf16 b, .param .b128 c)",
          3,
          { { 0, 4 }, { 4, 2 }, { 16, 16 } } },
        { ".entry k(.param .u32 a,", -1, { { 0 } } },
        { ".entry k(.param .what a)", -1, { { 0 } } },
        { ".entry k(.param .v4 .f32 a)", -1, { { 0 } } },
        { ".entry k(.param .align 3 .b8 a[3])", -1, { { 0 } } },
        { ".entry k(.param .align 0 .b8 a[3])", -1, { { 0 } } },
        { ".entry k(.param .b8 a[99999999999999999999])", -1, { { 0 } } },
        { ".entry k(.param .b8 a[32765])", -1, { { 0 } } },
        { ".entry k(.param .b64 a[4096][4096][4096][4096][4096][4096])", -1, { { 0 } } },
        { ".entry k(.param .b8 a[])", -1, { { 0 } } },
        { ".entry (.param .b8 a)", -1, { { 0 } } },
        { ".entry", -1, { { 0 } } },
        { ".entry k(.param .b8 a", -1, { { 0 } } },
        { "/* .entry k()", -1, { { 0 } } },
        { ".func entry(.param .b8 a)", -1, { { 0 } } },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        FOUND(f);
        size_t n = strlen(rows[i].text);
        _cleanup_(freep) char *exact = malloc(n);
        memcpy(exact, rows[i].text, n);
        ck_assert_int_eq(image_read(exact, n, 0, &f_sink), 0);
        ck_assert_msg(f.n == (rows[i].n >= 0), "%s: %u kernels", rows[i].text, f.n);
        if (f.n)
            ck_assert_msg(!strcmp(f.at[0].name, "k") &&
                              same(f.at[0].layout, rows[i].at, (uint32_t)rows[i].n),
                          "%s", rows[i].text);
    }
}
END_TEST

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    folder = argv[1];
    corpus = argv[2];
    Suite *suite = suite_create("image");
    TCase *images = tcase_create("image");
    tcase_add_test(images, machine_code_for_every_device_reads_as_libelf_does);
    tcase_add_test(images, machine_code_of_older_compilers_reads_the_same);
    tcase_add_test(images, text_says_the_same);
    tcase_add_loop_test(images, fatbins_say_the_same_however_they_are_compressed, 0, 5);
    tcase_add_test(images, images_in_memory_need_no_length);
    tcase_add_test(images, short_and_foreign_images_are_refused);
    tcase_add_loop_test(images, cut_images_are_read_as_far_as_they_go, 0, 6);
    tcase_add_loop_test(images, damaged_images_give_layouts_that_can_be, 0, 6);
    tcase_add_test(images, descriptions_that_contradict_themselves_are_no_layout);
    tcase_add_test(images, descriptions_are_not_read_past_their_end);
    tcase_add_test(images, section_counts_may_stand_in_the_first_section);
    tcase_add_test(images, heads_of_kernels_in_text);
    suite_add_tcase(suite, images);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
