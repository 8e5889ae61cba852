/* SPDX-License-Identifier: Apache-2.0 */
/* The file of a recording, written chunk by chunk (<dmi/recording.h>). Thread: one at a time, by the recorder's lock. */
#pragma once

#include "storage/file.h"

#include <dmi/recording.h>

#include <stddef.h>
#include <stdint.h>

struct writer {
    struct file file;
    uint64_t n_written; /* bytes of the file so far */
    void *frame;        /* room for a compressed chunk */
    size_t n_frame;
};

/* Makes @path, which must not exist, and writes the header. Return: 0 or -errno. */
int writer_open(struct writer *writer, const char *path);

/* A part of a chunk. */
struct writer_part {
    const void *data;
    size_t n;
};

/* A chunk of @n_parts one after the other, at most 4. Return: 0 or -errno. */
int writer_add(struct writer *writer, enum dmi_recording_type type, const struct writer_part *parts,
               int n_parts);

/* A chunk of @n bytes, compressed where that makes it smaller. Return: 0 or -errno. */
int writer_add_compressed(struct writer *writer, enum dmi_recording_type type, const void *data,
                          size_t n);

/* Accepts a zeroed struct. */
void writer_close(struct writer *writer);
