/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of answers that others computed from the run (docs/analysis.md): what each is, whose it is, and its arrays. Nothing in a file is
 * trusted. A program of one thread.
 */
#pragma once

#include "core/err.h"
#include "read/safetensors.h"
#include "tools/view/view.h"

#define ANSWER_ANY UINT64_MAX

struct answer_file {
    const char *path;
    struct safetensors st;
    int64_t request; /* -1: none */
    const char *id;  /* NULL: none */
};

/* An array of a file; where dimensions that several have are ANSWER_ANY, the first that is met sets them. */
struct answer_array {
    const char *key;
    uint32_t dtype;
    bool optional; /* it may lack, and is NULL then */
    uint64_t *dims[3];
    const void *
        to; /* address of the pointer that gets its elements, which live as long as the file is open */
};

/* Opens a file, and checks that it is an answer of this run that a page shows. Return: 0 or -errno with a sentence in @err. */
int answer_file_open(struct err *err, struct view_report *report, const char *path,
                     struct answer_file *out);
/* Accepts a zeroed struct. */
void answer_file_deinit(struct answer_file *file);

/* Which answer it is: "lens", "dla". */
bool answer_file_is(const struct answer_file *file, const char *what);

/* Return: 0; -EINVAL (an array that lacks, or of another type or shape) with a sentence in @err. */
int answer_file_arrays(struct err *err, const struct answer_file *file,
                       const struct answer_array *arrays, size_t n);

/* Texts of the tokens that an answer names. */
struct answer_texts {
    uint64_t n, n_bytes;
    const int32_t *ids;
    const int64_t *ends; /* in @bytes, by token */
    const char *bytes;
};

/* None where the file has none. Return: as answer_file_arrays(). */
int answer_file_texts(struct err *err, const struct answer_file *file, struct answer_texts *out);
/* Bytes of the document that they take, at most. */
uint64_t answer_texts_cost(const struct answer_texts *texts);
/* The member "texts": by id. */
void answer_texts_add(struct document *document, const struct answer_texts *texts);

/* Members that say whose it is, what it was asked for and what was checked. @n_tokens: that the file has */
void answer_file_add_facts(struct document *document, const struct answer_file *file,
                           uint64_t n_tokens);

/* The member "positions", of the tokens from @first on. */
void answer_file_add_positions(struct document *document, const int64_t *positions, uint64_t first,
                               uint64_t n);
