/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The libcupti of this process, and its functions by name: it is never linked, and each function may be missing. Thread: any, after
 * library_find(). Source: the functions' names and parameters, cupti_activity.h of CUDA 13.0.
 */
#pragma once

#include "core/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LIBRARY_OK    0
#define LIBRARY_TAKEN 39 /* CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED: another tool has it */

/* A buffer is asked for; a buffer is full, or is flushed. Any thread of CUPTI's. */
typedef void library_request(uint8_t **buffer, size_t *n_bytes, size_t *most_records);
typedef void library_complete(void *context, uint32_t stream, uint8_t *buffer, size_t n_bytes,
                              size_t n_valid);

typedef int library_register(library_request *request, library_complete *complete);

/* As dlsym(). */
typedef void *library_lookup(void *handle, const char *name);

/* Each returns a CUptiResult. */
struct library {
    int (*get_version)(uint32_t *version);
    library_register *register_callbacks;
    int (*enable)(int kind);
    int (*disable)(int kind);
    int (*flush_all)(uint32_t flag); /* 1: forced */
    int (*next_record)(uint8_t *buffer, size_t n_valid, uint8_t **record);
    int (*get_stream_id)(void *context, void *stream, uint8_t per_thread, uint32_t *id);
    int (*get_context_id)(void *context, uint32_t *id);
    int (*dropped)(void *context, uint32_t stream, size_t *n);
    /* NULL: it lacks it */
    int (*set_attribute)(int attribute, size_t *n_bytes, void *value);
    int (*get_exec_id)(void *exec, uint32_t *id);
    int (*get_node_id)(void *node, uint64_t *id);
    int (*get_timestamp)(uint64_t *ns);

    char path[256]; /* where it was found */
    bool brought;   /* the process did not have it */
};

/**
 * library_find() - one that the process has already, else @path, else libcupti.so of CUDA @major or of the one below it
 * @lookup: finds its functions. @path: NULL or "": none is named. Never calls into it: some versions crash before the driver is there.
 * Return: 0, -ENOENT with a sentence in @err.
 */
int library_find(struct err *err, struct library *library, library_lookup *lookup, const char *path,
                 int major);
