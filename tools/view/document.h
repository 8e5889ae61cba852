/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The JSON document that a report holds, built member by member. Everything in it that a run says is text: what people cannot see, or what
 * turns the direction of text, is written out, and bytes that are no UTF-8 are (\xNN). A program of one thread.
 */
#pragma once

#include "read/value.h"
#include "storage/text.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct document {
    struct text out;
    bool
        in_page; /* for a page: nothing in it ends a script, and arrays are base64 of little-endian elements */
    int (*write)(void *arg, const void *data, size_t n, uint64_t at); /* takes what is there, from
                       time to time: 0 or -errno; NULL: all of it stays in memory */
    void *arg;
    uint64_t n_written; /* private: bytes that it took */
    int failure;        /* private: of it, or of what gives elements */
    bool comma;         /* private */
};

/* Bytes of all that was added so far. */
uint64_t document_bytes_so_far(const struct document *d);

/* Hands out what is still in memory. Return: 0 or -errno, also of what was handed out before. */
int document_finish(struct document *d);

/* A string as people see it, as a new value; NULL: null. A byte that is no UTF-8 is `\xNN`, what is not printable `\u{N}`. */
json_t *document_text(const char *s);
json_t *document_bytes(const char *s, size_t n);

/* @key: NULL within a list. Each object and list that is begun is ended. */
void document_begin(struct document *d, const char *key, char bracket);
void document_end(struct document *d, char bracket);

/* A member, or an element of a list; takes @value over. NULL: no memory. */
void document_add(struct document *d, const char *key, json_t *value);

/* Arrays of numbers; what is not finite is null where they are not base64. */
void document_floats(struct document *d, const char *key, const float *values, size_t n);
void document_doubles(struct document *d, const char *key, const double *values, size_t n);
void document_integers(struct document *d, const char *key, const int32_t *values, size_t n);
void document_octets(struct document *d, const char *key, const uint8_t *values, size_t n);

/* Some elements of an array, from @first on, into @out. Return: 0 or -errno, which document_finish() returns. */
typedef int document_fill(void *arg, size_t first, size_t n, void *out);

/* The same arrays, of elements that are nowhere together: @fill is called for some after the others. */
void document_floats_by(struct document *d, const char *key, document_fill *fill, void *arg,
                        size_t n);
void document_octets_by(struct document *d, const char *key, document_fill *fill, void *arg,
                        size_t n);

/* Bytes that these add to a page for so many bytes of elements, at most. */
uint64_t document_cost(uint64_t n_bytes);
