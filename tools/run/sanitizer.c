/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/run/sanitizer.h"

#include "core/any.h"
#include "core/cleanup.h"
#include "tools/common/say.h"

#include <elf.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_SCRIPTS 5 /* whose interpreters are scripts; as of the kernel */
#define MAX_PHDRS   128
#define MAX_ENTRIES 65536

/* ------------------------------------------------------------------------- the file */

/* Where execvp() finds it. Return: -1: nowhere that can be read. */
static int open_command(const char *command)
{
    if (strchr(command, '/'))
        return open(command, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    _cleanup_(freep) char *path = strdup(getenv("PATH") ? getenv("PATH") : "");
    for (char *rest = path, *folder; path && (folder = strsep(&rest, ":"));) {
        _cleanup_(freep) char *file = NULL;
        if (asprintf(&file, "%s/%s", *folder ? folder : ".", command) < 0)
            return -1;
        struct stat st;
        if (!access(file, X_OK) && !stat(file, &st) && S_ISREG(st.st_mode))
            return open(file, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    }
    return -1;
}

static bool read_at(int fd, void *to, size_t n, uint64_t at)
{
    return at <= INT64_MAX && pread(fd, to, n, (off_t)at) == (ssize_t)n;
}

/* ------------------------------------------------------------------------- what it needs */

/* Source: the ELF specification, "Program Header" and "Dynamic Section". */
struct image {
    int fd;
    uint32_t n_phdrs;
    Elf64_Phdr phdrs[MAX_PHDRS];
};

static bool load_image(int fd, struct image *out)
{
    Elf64_Ehdr h;
    out->fd = fd;
    if (!read_at(fd, &h, sizeof h, 0) || memcmp(h.e_ident, ELFMAG, SELFMAG) != 0 ||
        h.e_ident[EI_CLASS] != ELFCLASS64 || h.e_phentsize != sizeof *out->phdrs ||
        h.e_phnum > MAX_PHDRS)
        return false;
    out->n_phdrs = h.e_phnum;
    return read_at(fd, out->phdrs, h.e_phnum * sizeof *out->phdrs, h.e_phoff);
}

/* Where in the file an address of the program lies. Return: UINT64_MAX: nowhere. */
static uint64_t offset_of(const struct image *image, uint64_t address)
{
    for (uint32_t i = 0; i < image->n_phdrs; i++) {
        const Elf64_Phdr *p = &image->phdrs[i];
        if (p->p_type == PT_LOAD && address >= p->p_vaddr && address - p->p_vaddr < p->p_filesz)
            return address - p->p_vaddr + p->p_offset;
    }
    return UINT64_MAX;
}

static const Elf64_Phdr *dynamic_of(const struct image *image)
{
    return FIRST(i, image->n_phdrs, image->phdrs[i].p_type == PT_DYNAMIC, &image->phdrs[i], NULL);
}

/* The first entry of the tag from number *@i on. Return: false: there is none more. */
static bool next_entry(const struct image *image, int64_t tag, uint64_t *i, uint64_t *value)
{
    const Elf64_Phdr *dynamic = dynamic_of(image);
    Elf64_Dyn entry;
    while (dynamic && *i < MAX_ENTRIES && *i < dynamic->p_filesz / sizeof entry &&
           read_at(image->fd, &entry, sizeof entry, dynamic->p_offset + (*i)++ * sizeof entry) &&
           entry.d_tag != DT_NULL)
        if (entry.d_tag == tag) {
            *value = entry.d_un.d_val;
            return true;
        }
    return false;
}

static bool is_runtime(const char *library)
{
    return !strncmp(library, "libasan.so", 10) || !strncmp(library, "libclang_rt.asan", 16);
}

/* The sanitizer's library among those that the program needs. Return: false: none. */
static bool needs_runtime(int fd, char library[64])
{
    struct image image;
    uint64_t i = 0, strings, name;
    if (!load_image(fd, &image) || !next_entry(&image, DT_STRTAB, &i, &strings))
        return false;
    strings = offset_of(&image, strings);
    for (i = 0; strings != UINT64_MAX && next_entry(&image, DT_NEEDED, &i, &name);) {
        ssize_t n = name <= INT32_MAX ? pread(fd, library, 63, (off_t)(strings + name)) : -1;
        library[n > 0 ? n : 0] = 0;
        if (is_runtime(library))
            return true;
    }
    return false;
}

/* ------------------------------------------------------------------------- scripts */

/* What the first line of a script runs: "#!/usr/bin/env [-S] NAME" looks for NAME. Return: NULL: it is no script; else in @line. */
static char *interpreter_of(int fd, char line[256])
{
    ssize_t n = pread(fd, line, 255, 0);
    char *save = NULL;
    line[n > 0 ? n : 0] = 0;
    if (strncmp(line, "#!", 2) != 0)
        return NULL;
    line[strcspn(line, "\n")] = 0;
    char *word = strtok_r(line + 2, " \t", &save);
    const char *last = word ? strrchr(word, '/') : NULL;
    if (!last || strcmp(last, "/env") != 0)
        return word;
    while ((word = strtok_r(NULL, " \t", &save)) && (*word == '-' || strchr(word, '='))) {}
    return word;
}

/* Has somebody said that the order does not matter? Source: the flags of sanitizer_flags.inc, as "verify_asan_link_order=0" */
static bool is_allowed(void)
{
    const char *options = getenv("ASAN_OPTIONS"), *at = NULL;
    for (const char *p = options; p && (p = strstr(p, "verify_asan_link_order=")); p++)
        at = p; /* the last counts */
    at = at ? strchr(at, '=') + 1 : NULL;
    return at && (*at == '0' || !strncmp(at, "false", 5) || !strncmp(at, "no", 2));
}

void sanitizer_say(const char *command)
{
    char line[256], library[64], name[256];
    snprintf(name, sizeof name, "%s", command);
    for (int i = 0; i < MAX_SCRIPTS && !is_allowed(); i++) {
        _cleanup_(closep) int fd = open_command(name);
        const char *next = fd < 0 ? NULL : interpreter_of(fd, line);
        if (!next && fd >= 0 && needs_runtime(fd, library))
            complain("%s is built with AddressSanitizer: it needs %s, which ends a program where "
                     "another library is loaded before it. Run it with "
                     "ASAN_OPTIONS=verify_asan_link_order=0",
                     name, library);
        if (!next)
            return;
        snprintf(name, sizeof name, "%s", next);
    }
}
