/* SPDX-License-Identifier: Apache-2.0 */
#include "read/value.h"

#include "core/cleanup.h"
#include "core/regular.h"
#include "read/utf8.h"

#include <dmi/format.h>

#include <math.h>
#include <stdbool.h>
#include <string.h>

json_t *value_bytes(const char *s, size_t n)
{
    json_t *v = json_stringn(s, n);
    if (v)
        return v;
    _cleanup_(text_deinit) struct text t = { 0 };
    utf8_add_valid(&t, s, n);
    return t.failed || !t.data ? NULL : json_stringn(t.data, t.n);
}

json_t *value_text(const char *s)
{
    return s ? value_bytes(s, strlen(s)) : json_null();
}

json_t *value_u64(uint64_t v)
{
    return v <= INT64_MAX ? json_integer((json_int_t)v) : json_real((double)v);
}

json_t *value_double(double v)
{
    if (!isfinite(v))
        return json_null();
    return v == floor(v) && fabs(v) < 0x1p53 && !(v == 0 && signbit(v))
               ? json_integer((json_int_t)v)
               : json_real(v);
}

json_t *value_layer(int32_t layer)
{
    return layer == DMI_NO_LAYER ? json_null() : json_integer(layer);
}

/* Bytes before the first that is not ASCII, or DEL. */
static size_t ascii_bytes(const char *data, size_t n)
{
    size_t i = 0;
    while (i < n && (uint8_t)data[i] < 0x7f)
        i++;
    return i;
}

/* Of jansson, which leaves DEL, C1, separators and what turns the direction of text as they are. Strings come whole. */
static int add(const char *data, size_t n, void *to)
{
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t c = '?';
        if ((len = ascii_bytes(data + i, n - i))) {
            text_add(to, data + i, len);
            continue;
        }
        len = utf8_next(data + i, n - i, &c);
        bool plain = len && utf8_is_printable(c);
        plain ? text_add(to, data + i, len) : text_json_character(to, c);
        len = len ? len : 1;
    }
    return 0;
}

json_t *value_object(const struct value_pair *pairs, size_t n)
{
    json_t *o = json_object();
    bool good = o != NULL;
    for (size_t i = 0; i < n; i++) /* takes each over, whatever came before */
        good = !json_object_set_new(o, pairs[i].word, pairs[i].value) && good;
    if (good)
        return o;
    json_decref(o);
    return NULL;
}

void value_add(struct text *to, const json_t *value)
{
    if (!value || json_dump_callback(value, add, to, JSON_ENCODE_ANY))
        to->failed = 1;
}

void value_add_new(struct text *to, json_t *value)
{
    value_add(to, value);
    json_decref(value);
}

json_t *value_read(struct err *err, const char *path, uint64_t most, size_t flags)
{
    uint64_t n;
    _cleanup_(freep) char *text = regular_read(err, path, most, &n);
    json_t *value = text ? object_load(err, text, n, most, flags) : NULL;
    if (text && !value)
        err_prefix(err, "%s", path);
    return value;
}
