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

/* Takes one word of the command. Return: is it, or does it name, a Python? */
static bool take_word(struct python_words *out, const char *word, const char *path)
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
    out->words[out->n++] = python;
    return true;
}

void python_of(char *const *command, struct python_words *out)
{
    *out = (struct python_words){ 0 };
    const char *path = getenv("PATH");
    bool env = command && *command && !strcmp(base_of(*command), "env");
    if (env)
        out->words[out->n++] = *command++;
    for (; command && *command; command++) {
        bool assigns = env && **command != '-' && strchr(*command, '=');
        if (assigns && !strncmp(*command, "PATH=", 5))
            path = *command + 5;
        if (assigns && out->n < PYTHON_MAX_WORDS - 1)
            out->words[out->n++] = *command;
        else if (take_word(out, *command, path))
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
