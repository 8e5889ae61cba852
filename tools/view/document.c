/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/view/document.h"

#include "core/cleanup.h"
#include "core/utf8.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define AT_A_TIME   (64 << 10) /* bytes that are handed out together, at least */
#define BLOCK_BYTES (12 << 10) /* of an array, at a time: whole groups of three for base64 */

/* ------------------------------------------------------------------------- text */

static void add_shown(struct text *to, const char *s, size_t n)
{
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t c;
        len = utf8_next(s + i, n - i, &c);
        if (!len)
            text_printf(to, "\\x%02x", (uint8_t)s[i]);
        else if (utf8_is_printable(c))
            text_add(to, s + i, len);
        else
            text_printf(to, "\\u{%x}", c);
        len = len ? len : 1;
    }
}

json_t *document_bytes(const char *s, size_t n)
{
    _cleanup_(text_deinit) struct text t = { 0 };
    text_add(&t, "", 0);
    add_shown(&t, s, n);
    return t.failed ? NULL : json_stringn(t.data ? t.data : "", t.n);
}

json_t *document_text(const char *s)
{
    return s ? document_bytes(s, strlen(s)) : json_null();
}

/* ------------------------------------------------------------------------- the file */

uint64_t document_bytes_so_far(const struct document *d)
{
    return d->n_written + d->out.n;
}

int document_finish(struct document *d)
{
    if (d->out.failed)
        return -ENOMEM;
    if (!d->write || d->failure)
        return d->failure;
    d->failure = d->write(d->arg, d->out.data, d->out.n, d->n_written);
    d->n_written += d->out.n;
    d->out.n = 0;
    return d->failure;
}

/* ------------------------------------------------------------------------- JSON in a script */

/* Characters that could end a script or begin a comment there stand in strings alone, where JSON may escape them. */
static int add_escaped(const char *data, size_t n, void *to)
{
    for (size_t i = 0, start = 0; i <= n; i++)
        if (i == n || strchr("<>&", data[i])) {
            text_add(to, data + start, i - start);
            if (i < n)
                text_printf(to, "\\u%04x", (unsigned)data[i]);
            start = i + 1;
        }
    return 0;
}

/* Hands out what is in memory, if that is much; a failure is there at the end. */
static void settle(struct document *d)
{
    if (d->write && d->out.n > AT_A_TIME)
        (void)document_finish(d);
}

static void put_key(struct document *d, const char *key)
{
    settle(d);
    text_add(&d->out, d->comma ? ",\n" : "", d->comma ? 2 : 0);
    if (key)
        text_printf(&d->out, "\"%s\":", key);
    d->comma = true;
}

void document_begin(struct document *d, const char *key, char bracket)
{
    put_key(d, key);
    text_add(&d->out, &bracket, 1);
    d->comma = false;
}

void document_end(struct document *d, char bracket)
{
    text_add(&d->out, &bracket, 1);
    d->comma = true;
}

void document_add(struct document *d, const char *key, json_t *value)
{
    put_key(d, key);
    if (!value || json_dump_callback(value, add_escaped, &d->out,
                                     JSON_ENCODE_ANY | JSON_ENSURE_ASCII | JSON_COMPACT))
        d->out.failed = 1;
    json_decref(value);
}

/* ------------------------------------------------------------------------- arrays */

static void add_base64(struct text *to, const uint8_t *data, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        uint32_t v = (uint32_t)data[i] << 16 | (i + 1 < n ? (uint32_t)data[i + 1] << 8 : 0) |
                     (i + 2 < n ? data[i + 2] : 0u);
        char four[4] = { digits[v >> 18], digits[v >> 12 & 63], digits[v >> 6 & 63],
                         digits[v & 63] };
        for (size_t k = n - i; k < 3; k++)
            four[k + 1] = '=';
        text_add(to, four, sizeof four);
    }
}

/* What elements of an array are. */
struct element_kind {
    size_t size;
    void (*put)(struct text *to, const void *element); /* as text */
};

static void put_float(struct text *to, const void *element)
{
    float value;
    memcpy(&value, element, sizeof value);
    text_json_double(to, (double)value);
}

static void put_double(struct text *to, const void *element)
{
    double value;
    memcpy(&value, element, sizeof value);
    text_json_double(to, value);
}

static void put_integer(struct text *to, const void *element)
{
    int32_t value;
    memcpy(&value, element, sizeof value);
    text_printf(to, "%" PRId32, value);
}

static void put_octet(struct text *to, const void *element)
{
    text_printf(to, "%u", *(const uint8_t *)element);
}

static const struct element_kind floats = { sizeof(float), put_float },
                                 doubles = { sizeof(double), put_double },
                                 integers = { sizeof(int32_t), put_integer },
                                 octets = { 1, put_octet };

static void put_numbers(struct text *to, const struct element_kind *kind, const uint8_t *data,
                        size_t n, bool is_first)
{
    for (size_t i = 0; i < n; i++) {
        text_add(to, ",", i || !is_first ? 1 : 0);
        kind->put(to, data + i * kind->size);
    }
}

/* Numbers as text, but for a page: base64 of the elements. */
static void add_array(struct document *d, const char *key, const struct element_kind *kind,
                      document_fill *fill, void *arg, size_t n)
{
    _Alignas(double) uint8_t block[BLOCK_BYTES];
    size_t each = sizeof block / kind->size;
    put_key(d, key);
    text_add(&d->out, d->in_page ? "\"" : "[", 1);
    for (size_t i = 0; i < n; i += each) {
        size_t some = n - i < each ? n - i : each;
        int r = fill(arg, i, some, block);
        d->failure = d->failure ? d->failure : r;
        if (d->in_page)
            add_base64(&d->out, block, some * kind->size);
        else
            put_numbers(&d->out, kind, block, some, !i);
        settle(d);
    }
    text_add(&d->out, d->in_page ? "\"" : "]", 1);
}

/* An array that is in memory. */
struct held {
    const uint8_t *data;
    size_t size; /* of an element */
};

static int copy(void *arg, size_t first, size_t n, void *out)
{
    const struct held *held = arg;
    memcpy(out, held->data + first * held->size, n * held->size);
    return 0;
}

static void add_held(struct document *d, const char *key, const struct element_kind *kind,
                     const void *values, size_t n)
{
    struct held held = { values, kind->size };
    add_array(d, key, kind, copy, &held, n);
}

void document_floats(struct document *d, const char *key, const float *values, size_t n)
{
    add_held(d, key, &floats, values, n);
}

void document_doubles(struct document *d, const char *key, const double *values, size_t n)
{
    add_held(d, key, &doubles, values, n);
}

void document_integers(struct document *d, const char *key, const int32_t *values, size_t n)
{
    add_held(d, key, &integers, values, n);
}

void document_octets(struct document *d, const char *key, const uint8_t *values, size_t n)
{
    add_held(d, key, &octets, values, n);
}

void document_floats_by(struct document *d, const char *key, document_fill *fill, void *arg,
                        size_t n)
{
    add_array(d, key, &floats, fill, arg, n);
}

void document_octets_by(struct document *d, const char *key, document_fill *fill, void *arg,
                        size_t n)
{
    add_array(d, key, &octets, fill, arg, n);
}

uint64_t document_cost(uint64_t n_bytes)
{
    return (n_bytes + 2) / 3 * 4 + 32;
}
