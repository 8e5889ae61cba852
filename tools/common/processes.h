/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes, as /proc shows them: who descends from whom, and what is loaded into one. Init only: one thread.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct process {
    pid_t pid, parent;
    uint64_t start; /* with the id it names a process for good: ids come back */
    uint64_t stack; /* where its stack starts: another one after each execve. 0: not ours to know */
    /* of the owner of the list, false in a new one: it descends from the command; it is known what it has, until execve */
    bool wanted, done;
};

struct processes {
    struct process *list; /* by id */
    size_t n;
};

/**
 * processes_read() - all processes that there are now
 * @all: is emptied first. Return: 0 or -errno.
 * Source: proc(5), /proc/PID/stat
 */
int processes_read(struct processes *all);

/* Frees the list. Accepts an empty one. */
void processes_deinit(struct processes *all);

/* The process of this id in @all, NULL: none. */
struct process *processes_find(const struct processes *all, pid_t pid);

/* What a process has loaded. */
enum process_has {
    PROCESS_NEITHER = 0, /* or it has ended, or we may not look */
    PROCESS_DRIVER,      /* the driver, without the library */
    PROCESS_LIBRARY,
};

/**
 * process_has() - does process @pid have the driver, or the file @library (its last name), loaded?
 * Reads no further than to the library.
 */
enum process_has process_has(pid_t pid, const char *library);

/* Was @pid started with a variable whose entry is @begin ("NAME="), and after that, anywhere, @part? false also where we may not look. */
bool process_has_entry(pid_t pid, const char *begin, const char *part);
