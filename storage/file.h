/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that live in somebody else's process: descriptors may be closed or reused under us (the
 * host owns the table), files deleted, and a write beyond RLIMIT_FSIZE would raise SIGXFSZ (core/quiet.h). One thread a file.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

struct direct;

struct file {
    int fd;                /* -1: none */
    struct direct *direct; /* borrowed; how large writes go; NULL: through the page cache */
    char *path;
    dev_t dev;
    ino_t ino;
    int has_links; /* the file system counts them: 0 says that the file was deleted */
};

/* Makes @path (0600), which must not exist. Return: 0 or -errno. */
int file_create(struct file *file, const char *path);

/**
 * file_write_at() - write all buffers, one after the other, at @offset
 * @buffers: used up
 * Retries short writes and EINTR. Return: 0 or -errno, -ENOENT where the file was deleted; then any part may have
 * been written.
 */
int file_write_at(struct file *file, struct iovec *buffers, int n_buffers, uint64_t offset);

/* Makes @path of @n bytes, mapped for writing as *@map, and then without a descriptor. Return: 0 or -errno: it is not there. */
int file_create_mapped(const char *path, const void *data, size_t n, void **map);

/* Cuts back to @n_bytes. Return: 0 or -errno. */
int file_cut(struct file *file, uint64_t n_bytes);
int file_sync(struct file *file);
/* A descriptor of the same file, for another thread to sync; the caller closes it. Return: -errno. */
int file_dup(struct file *file);
void file_deinit(struct file *file);

/* Writes @path whole through PATH.tmp and a rename (0600). @sync: fsync before it. */
int file_replace(const char *path, const void *data, size_t n_bytes, int sync);
