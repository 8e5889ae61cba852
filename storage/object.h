/* SPDX-License-Identifier: Apache-2.0 */
/* JSON of runs and of files that a user names: how it is read, and what stands under an object's key. Any thread. The capturing library reads none. */
#pragma once

#include "core/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* An object whose keys stand there once, not nested too deep. Return: a new reference; NULL: it is none. */
json_t *object_parse(const char *text, size_t n);

/*
 * Of any JSON, in a text of at most @most bytes; @flags: of json_loadb(). Return: a new reference; NULL with a sentence in @err: -EFBIG, -EBADMSG.
 */
json_t *object_load(struct err *err, const void *text, uint64_t n, uint64_t most, size_t flags);

/* Whether a UUID stands under a key. */
bool object_uuid(const json_t *object, const char *key, uint8_t out[16]);

/* The string under a key; @otherwise: there is none. */
static inline const char *object_text_or(const json_t *object, const char *key,
                                         const char *otherwise)
{
    const char *s = json_string_value(json_object_get(object, key));
    return s ? s : otherwise;
}

/* The string under a key; NULL: there is none. */
static inline const char *object_text(const json_t *object, const char *key)
{
    return object_text_or(object, key, NULL);
}

/* The number under a key; 0: there is none. */
static inline uint64_t object_number(const json_t *object, const char *key)
{
    return (uint64_t)json_integer_value(json_object_get(object, key));
}

/* Whether true stands under a key. */
static inline bool object_flag(const json_t *object, const char *key)
{
    return json_is_true(json_object_get(object, key));
}
