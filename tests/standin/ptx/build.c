/* SPDX-License-Identifier: Apache-2.0 */
#include "build.h"
#include "info.h"
#define RT_ENV_ONLY
#include "rt.h" /* so that make and ninja know: their text is part of this object */
#include "rt_matrix.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

extern char **environ;

/* info.h, rt.h and rt_matrix.h as text, one after the other; INFO_H, RT_H and RT_MATRIX_H are their paths, given by meson.build */
__asm__(".section .rodata\n"
        "rt_text:\n"
        ".incbin \"" INFO_H "\"\n"
        ".incbin \"" RT_H "\"\n"
        ".incbin \"" RT_MATRIX_H "\"\n"
        "rt_text_end:\n"
        ".byte 0\n"
        ".previous\n");
extern const char rt_text[] __attribute__((visibility("hidden")));
extern const char rt_text_end[] __attribute__((visibility("hidden")));

static char *const flags[] = { "-std=gnu17",
                               "-O2",
                               "-march=native",
                               "-ffp-contract=off",
                               "-fno-strict-aliasing",
                               "-fwrapv",
                               "-fno-math-errno",
                               "-fno-trapping-math",
                               "-fno-stack-protector",
                               "-w",
                               "-shared",
                               "-fPIC",
                               NULL };

static void hash_file_facts(XXH64_state_t *h, const char *path)
{
    struct stat st;
    if (stat(path, &st))
        return;
    XXH64_update(h, path, strlen(path));
    XXH64_update(h, &st.st_size, sizeof st.st_size);
    XXH64_update(h, &st.st_mtim, sizeof st.st_mtim);
}

/* The compiler's binary by place, size and date: asking it for its version would cost a process. */
static void hash_compiler(XXH64_state_t *h)
{
    const char *path = getenv("PATH");
    char name[PATH_MAX], real[PATH_MAX];
    for (const char *dir = path ? path : "/usr/bin"; dir;
         dir = strchr(dir, ':') ? strchr(dir, ':') + 1 : NULL) {
        snprintf(name, sizeof name, "%.*s/cc", (int)strcspn(dir, ":"), dir);
        if (realpath(name, real)) {
            hash_file_facts(h, real);
            return;
        }
    }
}

/* -march=native makes code for this CPU only. */
static void hash_cpu(XXH64_state_t *h)
{
    char line[8192];
    FILE *f = fopen("/proc/cpuinfo", "re");
    while (f && fgets(line, sizeof line, f) && line[0] != '\n')
        if (!strncmp(line, "model name", 10) || !strncmp(line, "flags", 5) ||
            !strncmp(line, "Features", 8))
            XXH64_update(h, line, strlen(line));
    if (f)
        fclose(f);
}

/* What was translated, by which translator: its library by place, size and date. */
static void hash_translator(XXH64_state_t *h, const struct build_from *from)
{
    Dl_info library;
    if (dladdr(rt_text, &library) && library.dli_fname)
        hash_file_facts(h, library.dli_fname);
    XXH64_update(h, &from->pausable, sizeof from->pausable);
}

/* Of C; of the PTX that it comes from with @from. */
static unsigned long long cache_key(const char *text, size_t n, const struct build_from *from)
{
    XXH64_state_t *h = XXH64_createState();
    if (!h)
        return 0;
    XXH64_reset(h, 1);
    XXH64_update(h, rt_text, (size_t)(rt_text_end - rt_text));
    XXH64_update(h, text, n);
    if (from)
        hash_translator(h, from);
    for (char *const *f = flags; *f; f++)
        XXH64_update(h, *f, strlen(*f));
    hash_compiler(h);
    hash_cpu(h);
    unsigned long long key = XXH64_digest(h);
    XXH64_freeState(h);
    return key;
}

static int make_folders(char *path)
{
    for (char *at = path + 1; *at; at++)
        if (*at == '/') {
            *at = 0;
            if (mkdir(path, 0700) && errno != EEXIST) {
                *at = '/';
                return -1;
            }
            *at = '/';
        }
    return mkdir(path, 0700) && errno != EEXIST ? -1 : 0;
}

static int cache_folder(char *path, size_t n)
{
    const char *set = getenv("DMI_STANDIN_CACHE"), *xdg = getenv("XDG_CACHE_HOME"),
               *home = getenv("HOME");
    if (set && *set)
        snprintf(path, n, "%s", set);
    else if (xdg && *xdg)
        snprintf(path, n, "%s/dmi-standin", xdg);
    else
        snprintf(path, n, "%s/.cache/dmi-standin", home && *home ? home : "/tmp");
    return make_folders(path);
}

static int write_all(const char *path, const char *text, size_t n)
{
    FILE *f = fopen(path, "we");
    if (!f)
        return -1;
    size_t n_rt = (size_t)(rt_text_end - rt_text);
    int bad = fwrite(rt_text, 1, n_rt, f) != n_rt || fwrite(text, 1, n, f) != n;
    return fclose(f) || bad ? -1 : 0;
}

/* The child starts with ordinary signals: the application may block all, or ignore SIGCHLD, which cc needs. */
static int spawn_cc(pid_t *pid, char *const argv[], const char *messages)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none, usual;
    int r;

    sigemptyset(&none);
    sigemptyset(&usual);
    sigaddset(&usual, SIGCHLD);
    sigaddset(&usual, SIGPIPE);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &usual);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 1, messages, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    r = posix_spawnp(pid, "cc", &actions, &attributes, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    return r;
}

/* Return: the compiler's exit status, -1 if it could not be started */
static int compile(const char *source, const char *object, const char *messages)
{
    char *argv[32] = { "cc" };
    size_t n = 1;
    pid_t pid;
    int status = -1;

    for (char *const *f = flags; *f; f++)
        argv[n++] = *f;
    argv[n++] = "-o";
    argv[n++] = (char *)object;
    argv[n++] = (char *)source;
    argv[n++] = "-lm";
    if (spawn_cc(&pid, argv, messages))
        return -1;
    while (waitpid(pid, &status, 0) < 0) {
        /* an application that ignores SIGCHLD gets no status: then what cc wrote is the answer */
        if (errno == ECHILD)
            return access(object, R_OK) ? -1 : 0;
        if (errno != EINTR)
            return -1;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void read_messages(const char *path, char *log, size_t n_log)
{
    FILE *f = fopen(path, "re");
    if (!n_log)
        return;
    size_t n = f ? fread(log, 1, n_log - 1, f) : 0;
    log[n] = 0;
    if (f)
        fclose(f);
    if (!n)
        snprintf(log, n_log, "the C compiler `cc` could not be started");
}

/*
 * The hash of the object's bytes follows it: ld.so would map a file that is cut off, and crash.
 * Trailing bytes are no part of an ELF file's segments.
 */
struct seal {
    unsigned long long magic, hash;
};
#define SEAL_MAGIC 0x6c616573782d7470ull /* "pt-xseal" */

static int file_bytes(const char *path, unsigned char **bytes, size_t *n)
{
    struct stat st;
    FILE *f = fopen(path, "re");
    *bytes = NULL;
    if (!f)
        return -1;
    if (!fstat(fileno(f), &st) && S_ISREG(st.st_mode) && st.st_size > 0 && st.st_size < 1 << 30) {
        *n = (size_t)st.st_size;
        *bytes = malloc(*n);
    }
    int bad = !*bytes || fread(*bytes, 1, *n, f) != *n;
    fclose(f);
    return bad ? -1 : 0;
}

static int seal(const char *path)
{
    unsigned char *bytes;
    size_t n;
    struct seal s = { .magic = SEAL_MAGIC };
    int bad = file_bytes(path, &bytes, &n);
    if (!bad) {
        s.hash = XXH64(bytes, n, 1);
        FILE *f = fopen(path, "ae");
        bad = !f || fwrite(&s, 1, sizeof s, f) != sizeof s;
        bad = (f && fclose(f)) || bad;
    }
    free(bytes);
    return bad ? -1 : 0;
}

static bool sealed(const char *path)
{
    unsigned char *bytes;
    size_t n;
    struct seal s = { 0 };
    bool ok = !file_bytes(path, &bytes, &n) && n > sizeof s;
    if (ok) {
        memcpy(&s, bytes + n - sizeof s, sizeof s);
        ok = s.magic == SEAL_MAGIC && s.hash == XXH64(bytes, n - sizeof s, 1);
    }
    free(bytes);
    return ok;
}

static void *load(const char *path)
{
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

/* The link to the object of the C that @from is translated to. Return: 0, or -1 where there is no folder. */
static int link_of(const struct build_from *from, char *path, size_t n)
{
    char folder[PATH_MAX - 128];
    if (cache_folder(folder, sizeof folder))
        return -1;
    snprintf(path, n, "%s/%016llx.ptx", folder, cache_key(from->ptx, from->n, from));
    return 0;
}

void *build_known(const struct build_from *from)
{
    char path[PATH_MAX];
    return !link_of(from, path, sizeof path) && sealed(path) ? load(path) : NULL;
}

/* Where it fails, the next load translates again. */
static void note_translation(const struct build_from *from, const char *object)
{
    char path[PATH_MAX];
    if (link_of(from, path, sizeof path))
        return;
    unlink(path);
    (void)!symlink(strrchr(object, '/') + 1, path);
}

static void *build(const char *text, size_t n_text, const char *object, char *log, size_t n_log)
{
    char source[PATH_MAX + 64], temporary[PATH_MAX + 64], messages[PATH_MAX + 64];
    void *handle = NULL;
    /* several processes and threads may build the same: each its own files, the last rename wins */
    static unsigned serial;
    unsigned mine = __atomic_fetch_add(&serial, 1, __ATOMIC_RELAXED);
    int n = (int)strlen(object) - (int)strlen(".so");
    snprintf(source, sizeof source, "%.*s.%d.%u.c", n, object, (int)getpid(), mine);
    snprintf(temporary, sizeof temporary, "%.*s.%d.%u.so", n, object, (int)getpid(), mine);
    snprintf(messages, sizeof messages, "%.*s.%d.%u.log", n, object, (int)getpid(), mine);
    if (write_all(source, text, n_text)) {
        snprintf(log, n_log, "%s: %s", source, strerror(errno));
    } else if (compile(source, temporary, messages)) {
        read_messages(messages, log, n_log);
    } else if (seal(temporary) || rename(temporary, object)) {
        snprintf(log, n_log, "%s: %s", object, strerror(errno));
    } else {
        handle = load(object);
        if (!handle)
            snprintf(log, n_log, "%s", dlerror());
    }
    if (!getenv("DMI_STANDIN_KEEP_C"))
        unlink(source);
    unlink(temporary);
    unlink(messages);
    return handle;
}

void *build_shared(const char *text, size_t n_text, const struct build_from *from, char *log,
                   size_t n_log)
{
    char folder[PATH_MAX - 128], object[PATH_MAX];
    if (cache_folder(folder, sizeof folder)) {
        snprintf(log, n_log, "%s: %s", folder, strerror(errno));
        return NULL;
    }
    snprintf(object, sizeof object, "%s/%016llx.so", folder, cache_key(text, n_text, NULL));
    void *handle = sealed(object) ? load(object) : NULL;
    if (!handle)
        handle = build(text, n_text, object, log, n_log);
    if (handle)
        note_translation(from, object);
    return handle;
}
