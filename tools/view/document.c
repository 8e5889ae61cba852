/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/view/document.h"

#include "core/cleanup.h"
#include "core/utf8.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define AT_A_TIME (64 << 10) /* bytes that are handed out together, at least */

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

static void put_base64(struct document *d, const void *data, size_t n)
{
    text_add(&d->out, "\"", 1);
    for (size_t i = 0; i < n; i += AT_A_TIME / 4 * 3) {
        size_t left = n - i;
        add_base64(&d->out, (const uint8_t *)data + i,
                   left < AT_A_TIME / 4 * 3 ? left : AT_A_TIME / 4 * 3);
        settle(d);
    }
    text_add(&d->out, "\"", 1);
}

/* Numbers as text, but for a page: base64 of the elements. Return: whether they are text, which the caller adds. */
static bool begin_array(struct document *d, const char *key, const void *values, size_t n_bytes)
{
    put_key(d, key);
    if (d->in_page)
        put_base64(d, values, n_bytes);
    else
        text_add(&d->out, "[", 1);
    return !d->in_page;
}

static void end_array(struct document *d)
{
    text_add(&d->out, "]", 1);
}

void document_floats(struct document *d, const char *key, const float *values, size_t n)
{
    if (!begin_array(d, key, values, n * sizeof *values))
        return;
    for (size_t i = 0; i < n; i++) {
        text_add(&d->out, ",", i ? 1 : 0);
        text_json_double(&d->out, (double)values[i]);
    }
    end_array(d);
}

void document_doubles(struct document *d, const char *key, const double *values, size_t n)
{
    if (!begin_array(d, key, values, n * sizeof *values))
        return;
    for (size_t i = 0; i < n; i++) {
        text_add(&d->out, ",", i ? 1 : 0);
        text_json_double(&d->out, values[i]);
    }
    end_array(d);
}

void document_integers(struct document *d, const char *key, const int32_t *values, size_t n)
{
    if (!begin_array(d, key, values, n * sizeof *values))
        return;
    for (size_t i = 0; i < n; i++)
        text_printf(&d->out, i ? ",%" PRId32 : "%" PRId32, values[i]);
    end_array(d);
}

void document_octets(struct document *d, const char *key, const uint8_t *values, size_t n)
{
    if (!begin_array(d, key, values, n))
        return;
    for (size_t i = 0; i < n; i++)
        text_printf(&d->out, i ? ",%u" : "%u", values[i]);
    end_array(d);
}

uint64_t document_cost(uint64_t n_bytes)
{
    return (n_bytes + 2) / 3 * 4 + 32;
}
