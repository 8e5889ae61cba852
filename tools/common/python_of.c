/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/python_of.h"

#include "core/cleanup.h"

#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_HEAD 4096 /* bytes of a script that are looked at */

static const char *base_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* python, python3, python3.12, python3.13t */
static bool is_python(const char *word)
{
    const char *name = base_of(word);
    if (strncmp(name, "python", 6))
        return false;
    name += 6 + strspn(name + 6, "0123456789.");
    return !*name || !strcmp(name, "t");
}

/* The file that execvp() would run, as far as it can be said. @path: as PATH. Return: NULL: none; to be freed. */
static char *program_of(const char *word, const char *path)
{
    if (strchr(word, '/'))
        return access(word, X_OK) ? NULL : strdup(word);
    while (path && *path) {
        size_t n = strcspn(path, ":");
        _cleanup_(freep) char *file = NULL;
        if (asprintf(&file, "%.*s/%s", n ? (int)n : 1, n ? path : ".", word) < 0)
            return NULL;
        struct stat st;
        if (!stat(file, &st) && S_ISREG(st.st_mode) && !access(file, X_OK))
            return steal_ptr(file);
        path += n + (path[n] == ':');
    }
    return NULL;
}

/* Its first bytes where it is a script. Return: NULL: it is none; to be freed. */
static char *script_of(const char *file)
{
    _cleanup_(closep) int fd = open(file, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    _cleanup_(freep) char *head = malloc(MAX_HEAD + 1);
    struct stat st;
    ssize_t n =
        head && fd >= 0 && !fstat(fd, &st) && S_ISREG(st.st_mode) ? read(fd, head, MAX_HEAD) : -1;
    if (n < 2 || memcmp(head, "#!", 2))
        return NULL;
    head[n] = 0;
    return steal_ptr(head);
}

/* The Python that a script's first lines name, in @head, which is cut into words. Return: NULL: none. */
static const char *python_in(char *head)
{
    char *second = strchr(head, '\n'), *rest = NULL;
    if (second)
        *second++ = 0;
    const char *word = strtok_r(head + 2, " \t\r", &rest);
    if (word && !strcmp(base_of(word), "env"))
        do
            word = strtok_r(NULL, " \t\r", &rest);
        while (word && (*word == '-' || strchr(word, '=')));
    else if (word && !strcmp(base_of(word), "sh") && second && !strncmp(second, "'''exec' ", 9))
        word = strtok_r(second + 9, " \t\"\n",
                        &rest); /* where the path is too long for a first line */
    return word && is_python(word) ? word : NULL;
}

/* Takes one word of the command. @wrapped: its PATH is not the command's, so the path of the program is taken. Return: is it, or does it name, a Python? */
static bool take_word(struct python_words *out, const char *word, const char *path, bool wrapped)
{
    _cleanup_(freep) char *file = program_of(word, path);
    if (!file)
        return false;
    const char *python = is_python(word) ? word : NULL;
    if (!python) {
        out->script = script_of(file);
        python = out->script ? python_in(out->script) : NULL;
    }
    if (!python) {
        free(out->script);
        out->script = NULL;
        return false;
    }
    if (wrapped && !out->script)
        python = out->script = steal_ptr(file);
    out->words[out->n++] = python;
    return true;
}

/* ------------------------------------------------------------------------- wrappers with an environment of their own */

/* The value of an option, "--key V" or "--key=V"; NULL: the words up to @end lack it. */
static const char *value_of(char *const *words, char *const *end, const char *key, const char *more)
{
    size_t n = strlen(key);
    for (; words < end && *words; words++) {
        bool is = !strcmp(*words, key) || !strcmp(*words, more);
        if (is && words + 1 < end)
            return words[1];
        if (!strncmp(*words, key, n) && (*words)[n] == '=')
            return *words + n + 1;
    }
    return NULL;
}

/* uv's: the project's .venv, of the folder or of one above it. Return: to be freed, or NULL. */
static char *uv_folder(char *const *words, char *const *end)
{
    const char *said = getenv("UV_PROJECT_ENVIRONMENT"),
               *project = value_of(words, end, "--project", "--directory");
    _cleanup_(freep) char *at = realpath(project ? project : ".", NULL);
    if (said && *said)
        return strdup(said);
    while (at && *at) {
        _cleanup_(freep) char *venv = NULL;
        if (asprintf(&venv, "%s/.venv", at) < 0)
            return NULL;
        if (!access(venv, X_OK))
            return steal_ptr(venv);
        *strrchr(at, '/') = 0;
    }
    return NULL;
}

/* conda's: a prefix, or a name below the folder of conda itself. Return: to be freed, or NULL. */
static char *conda_folder(char *const *words, char *const *end)
{
    const char *prefix = value_of(words, end, "--prefix", "-p"),
               *name = value_of(words, end, "--name", "-n"), *root = getenv("MAMBA_ROOT_PREFIX"),
               *conda = getenv("CONDA_EXE");
    _cleanup_(freep) char *base = root ? strdup(root) : conda ? strdup(conda) : NULL;
    for (int up = 0; base && !root && up < 2; up++) {
        char *slash = strrchr(base, '/'); /* BASE/bin/conda */
        if (slash)
            *slash = 0;
    }
    char *found = NULL;
    if (prefix)
        return strdup(prefix);
    if (!base || !name)
        return NULL;
    if (!strcmp(name, "base"))
        return steal_ptr(base);
    return asprintf(&found, "%s/envs/%s", base, name) < 0 ? NULL : found;
}

/* How many words of the wrapper's options come first: those that begin with "-", and the values of those that are known. */
static char *const *end_of_options(char *const *word)
{
    static const char *const with_value[] = { "-n",        "-p",          "--name",   "--prefix",
                                              "--project", "--directory", "--python", "--with",
                                              "--extra",   "--group",     "--cwd",    "--env-file",
                                              "--package" };
    for (; *word && **word == '-'; word++)
        for (size_t i = 0; i < sizeof with_value / sizeof *with_value; i++)
            if (!strcmp(*word, with_value[i]) && word[1]) {
                word++;
                break;
            }
    return word;
}

/* PATH as the wrapper that @command begins with sets it. Return: to be freed; NULL: it is no such wrapper. */
static char *wrapped_path(char *const *command, const char *path)
{
    const char *name = base_of(*command);
    bool uv = !strcmp(name, "uv");
    if ((!uv && strcmp(name, "conda") != 0 && strcmp(name, "mamba") != 0 &&
         strcmp(name, "micromamba") != 0) ||
        !command[1] || strcmp(command[1], "run") != 0)
        return NULL;
    char *const *end = end_of_options(command + 2);
    _cleanup_(freep) char *folder = (uv ? uv_folder : conda_folder)(command + 2, end);
    char *found = NULL;
    return !folder || asprintf(&found, "%s/bin:%s", folder, path ? path : "") < 0 ? NULL : found;
}

void python_of(char *const *command, struct python_words *out)
{
    *out = (struct python_words){ 0 };
    const char *path = getenv("PATH");
    _cleanup_(freep) char *wrapped = NULL;
    bool env = command && *command && !strcmp(base_of(*command), "env");
    if (env)
        out->words[out->n++] = *command++;
    for (; command && *command; command++) {
        if (!wrapped && (wrapped = wrapped_path(command, path))) {
            path = wrapped;
            command++; /* run */
            env = false;
            continue;
        }
        bool assigns = env && **command != '-' && strchr(*command, '=');
        if (assigns && !strncmp(*command, "PATH=", 5))
            path = *command + 5;
        if (assigns && out->n < PYTHON_MAX_WORDS - 1)
            out->words[out->n++] = *command;
        else if (take_word(out, *command, path, wrapped))
            return;
        else if (**command != '-')
            env = false; /* what follows belongs to another program */
    }
    *out = (struct python_words){ .words = { "python3" }, .n = 1 };
}

void python_words_deinit(struct python_words *words)
{
    free(words->script);
    *words = (struct python_words){ 0 };
}
