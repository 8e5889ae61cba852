/* SPDX-License-Identifier: Apache-2.0 */
/* Which Python a command runs. Pure but for the files that it looks into. One thread. */
#pragma once

#include <stddef.h>

#define PYTHON_MAX_WORDS 32

/* Words that start a Python; its options may follow them. */
struct python_words {
    const char *words[PYTHON_MAX_WORDS];
    size_t n;
    char *
        script; /* owned: of a script's first lines, or a path, in which the last word lies; NULL: all words are the command's */
};

/**
 * python_of() - the Python that a command names, else python3 of PATH
 * The first word that is a program by the name python, python3 or python3.N, or a script whose first line names one (as pip and uv
 * write them, with a path or with env). Assignments of a leading "env" stay in front of it. After "uv run" and "conda run" words are looked for in
 * the environment that these start programs in, as far as folders and variables tell.
 * @command: NULL-terminated, borrowed as long as @out is used; NULL: there is none
 */
void python_of(char *const *command, struct python_words *out);

/* Accepts what was zeroed. */
void python_words_deinit(struct python_words *words);
