/* SPDX-License-Identifier: Apache-2.0 */
/* What commands share: who asks, the words of a line, and the answer that refuses. Thread: the control thread alone. */
#pragma once

#include "storage/text.h"

#include <stdbool.h>
#include <sys/types.h>

/* Who asks. */
struct line_peer {
    uid_t uid;
    pid_t pid;
    int fd; /* that came with the line; -1: none */
    /* serves other clients for a moment, for a command that waits. Return: false: it is time to end */
    bool (*meanwhile)(void);
};

/* The next word of a line, after blanks; "": there is none. *@rest: what follows it. */
char *line_word(char **rest);

/* The answer to something that is no command, or that is refused. */
void line_refuse(struct text *answer, const char *why);
