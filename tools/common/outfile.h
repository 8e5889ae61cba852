/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a tool writes what it was asked for: under a name of its own beside the place that was asked for, and renamed once all is
 * there, so that neither a failure nor a kill leaves half of it. A program of one thread.
 */
#pragma once

#include "core/err.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The file of a dataset that says which samples it has: it gets its place before them. */
#define OUTFILE_INDEX "index.json"

struct outfile {
    char *path;         /* as it will be called */
    char *temporary;    /* as it is called now; NULL: a device, written as it is */
    const char *option; /* that names it, where that is not --output; then nothing is replaced */
    bool is_folder;
    bool force;   /* what is there may be replaced */
    bool append;  /* what is there may be added to */
    bool goes_on; /* it is: the folder is not empty */
    int fd;       /* -1: not open */
};

/**
 * outfile_choose() - check a place before anything is written
 * @file: option, or NULL; force: a file may be replaced, and a folder that holds nothing but what an export writes; append: a folder may hold
 * anything; the rest is set
 * @path: NULL: the run's name and @suffix in the current folder; @run: its folder, or a lone segment
 * Refuses a run's folder, whatever is given; and without force and append what is there already, but for an empty folder. Return: 0 or -errno with a
 * sentence in @err.
 */
int outfile_choose(struct err *err, struct outfile *file, const char *path, const char *run,
                   const char *suffix, bool is_folder);

/* Opens a new file or folder under a temporary name. Return: as above. */
int outfile_open(struct err *err, struct outfile *file);

/* Gives what was written its name; what goes on is moved into the folder, the index before the files. Return: as above. */
int outfile_keep(struct err *err, struct outfile *file);

/* Removes what was written; of a folder all that it holds. */
void outfile_discard(struct outfile *file);

/* Discards what was not kept. Accepts a zeroed struct with fd -1. */
void outfile_deinit(struct outfile *file);
