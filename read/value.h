/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JSON values of what a run holds: always valid UTF-8, never a number that JSON lacks. Each is a new reference, or
 * NULL where memory ran out. Not locked: the owner's thread.
 */
#pragma once

#include "core/err.h"
#include "storage/object.h"
#include "storage/text.h"

#include <stddef.h>
#include <stdint.h>

/* A string; bytes that are no UTF-8 become U+FFFD. NULL: null. */
json_t *value_text(const char *s);
json_t *value_bytes(const char *s, size_t n);

/* An integer; a real above 2^63 - 1, which jansson's integers do not reach. */
json_t *value_u64(uint64_t v);

/* A number that reads back as the same double, an integer where it is one; null where it is not finite. */
json_t *value_double(double v);

/* null for DMI_NO_LAYER */
json_t *value_layer(int32_t layer);

struct value_pair {
    const char *word;
    json_t *value; /* taken over */
};

/* An object with so many members, in their order; NULL where one has no value. */
json_t *value_object(const struct value_pair *pairs, size_t n);

/* value_object() of { word, value } pairs */
#define VALUE_OBJECT(...)                                                                          \
    value_object((const struct value_pair[]){ __VA_ARGS__ },                                       \
                 sizeof(const struct value_pair[]){ __VA_ARGS__ } / sizeof(struct value_pair))

/* JSON of a regular file, which a sentence names, as object_load() and regular_read() take it. Return: a new reference; NULL with the sentence in @err. */
json_t *value_read(struct err *err, const char *path, uint64_t most, size_t flags);

/* Adds @value on one line. A NULL @value, or no memory, makes @to failed. */
void value_add(struct text *to, const json_t *value);

/* Adds @value as value_add() does, then drops it. */
void value_add_new(struct text *to, json_t *value);
