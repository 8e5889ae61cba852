/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/processes.h"

#include "core/cleanup.h"
#include "core/grow.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DRIVER "libcuda.so"

static int open_of(pid_t pid, const char *what)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, what);
    return open(path, O_RDONLY | O_CLOEXEC);
}

/* Fields of /proc/PID/stat, counted from 1. The second is a name in parentheses, which may hold any character. */
static bool read_stat(pid_t pid, struct process *p)
{
    enum { PARENT = 4, START = 22, STACK = 28 };
    char text[1024], *save = NULL;
    _cleanup_(closep) int fd = open_of(pid, "stat");
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (n <= 0)
        return false;
    text[n] = 0;
    char *rest = strrchr(text, ')');
    *p = (struct process){ .pid = pid };
    char *word = rest ? strtok_r(rest + 1, " ", &save) : NULL;
    for (int field = 3; word; field++, word = strtok_r(NULL, " ", &save)) {
        if (field == PARENT)
            p->parent = (pid_t)strtol(word, NULL, 10);
        else if (field == START)
            p->start = strtoull(word, NULL, 10);
        else if (field == STACK)
            p->stack = strtoull(word, NULL, 10);
    }
    return p->start != 0;
}

static int by_pid(const void *a, const void *b)
{
    const struct process *x = a, *y = b;
    return (x->pid > y->pid) - (x->pid < y->pid);
}

static bool push(struct processes *all, size_t *room, const struct process *p)
{
    if (grow((void **)&all->list, all->n, room, sizeof *all->list, 256))
        return false;
    all->list[all->n++] = *p;
    return true;
}

int processes_read(struct processes *all)
{
    processes_deinit(all);
    DIR *proc = opendir("/proc");
    if (!proc)
        return -errno;
    struct process p;
    size_t room = 0;
    int r = 0;
    for (const struct dirent *entry; !r && (entry = readdir(proc));) {
        pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);
        if (pid > 0 && read_stat(pid, &p) && !push(all, &room, &p))
            r = -ENOMEM;
    }
    closedir(proc);
    if (all->n)
        qsort(all->list, all->n, sizeof *all->list, by_pid);
    return r;
}

void processes_deinit(struct processes *all)
{
    free(all->list);
    *all = (struct processes){ 0 };
}

struct process *processes_find(const struct processes *all, pid_t pid)
{
    struct process key = { .pid = pid };
    return all->n ? bsearch(&key, all->list, all->n, sizeof key, by_pid) : NULL;
}

/* Is the mapping in @line of the file @name, or of one whose name goes on (as with a version)? */
static bool maps_file(const char *line, const char *name, bool goes_on)
{
    const char *path = strchr(line, '/'), *last = path ? strrchr(path, '/') + 1 : NULL;
    size_t n = strlen(name);
    return last && !strncmp(last, name, n) && (goes_on || strchr(" \n", last[n]));
}

enum process_has process_has(pid_t pid, const char *library)
{
    _cleanup_(freep) char *line = NULL;
    size_t room = 0;
    int fd = open_of(pid, "maps");
    _cleanup_(fclosep) FILE *maps = fd < 0 ? NULL : fdopen(fd, "r");
    enum process_has has = PROCESS_NEITHER;
    while (maps && getline(&line, &room, maps) > 0) {
        if (maps_file(line, library, false))
            return PROCESS_LIBRARY;
        if (maps_file(line, DRIVER, true))
            has = PROCESS_DRIVER;
    }
    return has;
}

bool process_has_entry(pid_t pid, const char *begin, const char *part)
{
    _cleanup_(freep) char *entry = NULL;
    size_t room = 0, n = strlen(begin);
    int fd = open_of(pid, "environ");
    _cleanup_(fclosep) FILE *environment = fd < 0 ? NULL : fdopen(fd, "r");
    while (environment && getdelim(&entry, &room, 0, environment) > 0)
        if (!strncmp(entry, begin, n))
            return strstr(entry + n, part);
    return false;
}
