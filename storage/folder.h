/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The folder of a run that is being written: hidden until all of its files are in it, so that readers never see half
 * a run. The caller owns the path; one thread. Source: docs/format.md 1.
 */
#pragma once

#include "core/err.h"

#include <stdint.h>

/**
 * folder_create() - a hidden folder (0700) in @out_dir, which is created (one level) if it is missing
 * @path: set to its absolute path: the application may change its working directory while we write
 * Return: 0 or -errno with a sentence in @err.
 */
int folder_create(struct err *err, const char *out_dir, char **path);

/**
 * folder_publish() - give the folder its name, HOST-PID-START[-N]
 * @path: replaced by the new one
 * Return: 0 or -errno with a sentence in @err.
 */
int folder_publish(struct err *err, char **path, const char *host, uint64_t pid, uint64_t start_ns);

/* Sets the link `latest` beside the run at @path to it; where that cannot be done it is taken away, as it would name an older run. Several processes may
 * do so at a time. A file or folder of that name stays. */
void folder_link_latest(const char *path);

/* The names of its files, and its own, reach the disk. Return: 0 or -errno. */
int folder_sync(const char *path);

/* PATH/NAME; NULL without memory. The caller's. */
char *folder_file(const char *path, const char *name);

/* Removes the files of a run that could not be opened, and the folder. */
void folder_remove(const char *path);
