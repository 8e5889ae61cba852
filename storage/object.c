/* SPDX-License-Identifier: Apache-2.0 */
#include "storage/object.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MAX_DEPTH 64

/* Brackets outside of strings; that they match is for the parser to see. */
static bool nesting_is_bounded(const char *text, size_t n)
{
    size_t depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (in_string && c == '\\')
            i++;
        else if (c == '"')
            in_string = !in_string;
        else if (!in_string && (c == '[' || c == '{') && ++depth > MAX_DEPTH)
            return false;
        else if (!in_string && (c == ']' || c == '}') && depth)
            depth--;
    }
    return true;
}

json_t *object_parse(const char *text, size_t n)
{
    json_error_t error;
    if (!nesting_is_bounded(text, n))
        return NULL;
    json_t *v = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    if (v && !json_is_object(v)) {
        json_decref(v);
        v = NULL;
    }
    return v;
}

bool object_uuid(const json_t *object, const char *key, uint8_t out[16])
{
    const char *s = object_text(object, key);
    unsigned v[16];
    if (!s || strlen(s) != 36 ||
        sscanf(s, "%2x%2x%2x%2x-%2x%2x-%2x%2x-%2x%2x-%2x%2x%2x%2x%2x%2x", &v[0], &v[1], &v[2],
               &v[3], &v[4], &v[5], &v[6], &v[7], &v[8], &v[9], &v[10], &v[11], &v[12], &v[13],
               &v[14], &v[15]) != 16)
        return false;
    for (int i = 0; i < 16; i++)
        out[i] = (uint8_t)v[i];
    return true;
}

json_t *object_load(struct err *err, const void *text, uint64_t n, uint64_t most, size_t flags)
{
    json_error_t why;
    if (n > most) {
        err_set(err, -EFBIG, "it has more than %" PRIu64 " bytes", most);
        return NULL;
    }
    json_t *value = json_loadb(text, n, flags, &why);
    if (!value)
        err_set(err, -EBADMSG, "line %d, column %d: %s", why.line, why.column, why.text);
    return value;
}
