/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists of heads in JSON files. A list is an array of [layer, head] or "LAYER.HEAD", or an object that has one as
 * "heads" or, as vLLM Hook's configs and Attention Tracker's, as params.important_heads. A program of one thread.
 */
#pragma once

#include <dmi/analyze_heads.h>

#include <jansson.h>

#define HEADS_FILE_MOST 65536

/* A file's JSON. What is wrong is said. Return: a new reference, or NULL. */
json_t *json_file(const char *path);

/* The heads that a file lists. What is wrong is said. Return: 0 with @out to be freed, or -1. */
int heads_file_read(const char *path, struct dmi_analyze_head **out, uint64_t *n);

/* Writes a list as a file that is not there yet, as params.important_heads. Return: as heads_file_read(). */
int heads_file_write(const char *path, const char *run, const struct dmi_analyze_head *heads,
                     uint64_t n);
