/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/image/ptx.h"

#include "core/any.h"

#include <stdlib.h>

#define MAX_ALIGN 4096u

/* ------------------------------------------------------------------------- words */

struct ptx_text {
    const char *at, *end;
};

/* A name, a number, a directive with its dot, or one other character; empty at the end. */
struct word {
    const char *at;
    size_t n;
};

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '$' || c == '%' || c == '.';
}

/* To what comes after @mark, or to the end. */
static void skip_past(struct ptx_text *t, const char *mark, size_t n)
{
    const char *found = memmem(t->at, (size_t)(t->end - t->at), mark, n);
    t->at = found ? found + n : t->end;
}

/* White space, comments and strings mean nothing here. */
static void skip_nothing(struct ptx_text *t)
{
    while (t->at < t->end) {
        size_t n = (size_t)(t->end - t->at);
        if (*t->at == ' ' || (*t->at >= '\t' && *t->at <= '\r')) {
            t->at++;
        } else if (n > 1 && !memcmp(t->at, "//", 2)) {
            skip_past(t, "\n", 1);
        } else if (n > 1 && !memcmp(t->at, "/*", 2)) {
            t->at += 2;
            skip_past(t, "*/", 2);
        } else if (*t->at == '"') {
            t->at++;
            skip_past(t, "\"", 1);
        } else {
            return;
        }
    }
}

static struct word next_word(struct ptx_text *t)
{
    skip_nothing(t);
    struct word w = { t->at, 0 };
    while (t->at < t->end && is_word(*t->at))
        t->at++;
    if (t->at == w.at && t->at < t->end)
        t->at++;
    w.n = (size_t)(t->at - w.at);
    return w;
}

static bool is(struct word w, const char *text)
{
    return w.n == strlen(text) && !memcmp(w.at, text, w.n);
}

/* Decimal, octal or hexadecimal, perhaps with a U at its end. Return: false where it is no number. */
static bool number(struct word w, uint64_t *value)
{
    char copy[24] = "", *end;
    if (!w.n || w.n >= sizeof copy || w.at[0] < '0' || w.at[0] > '9')
        return false;
    memcpy(copy, w.at, w.n);
    *value = strtoull(copy, &end, 0);
    return !*end || (*end == 'U' && !end[1]);
}

/* ------------------------------------------------------------------------- parameters */

struct param {
    uint64_t size, align; /* 0: not known yet */
    uint64_t n;           /* elements */
    bool pointer;         /* what is aligned from now on is what it points to */
    bool any;             /* there was a word of it */
};

static uint64_t size_of(struct word w)
{
    static const struct {
        const char *type;
        uint32_t size;
    } sizes[] = { { ".b8", 1 },  { ".u8", 1 },  { ".s8", 1 },    { ".b16", 2 },   { ".u16", 2 },
                  { ".s16", 2 }, { ".f16", 2 }, { ".bf16", 2 },  { ".b32", 4 },   { ".u32", 4 },
                  { ".s32", 4 }, { ".f32", 4 }, { ".f16x2", 4 }, { ".b64", 8 },   { ".u64", 8 },
                  { ".s64", 8 }, { ".f64", 8 }, { ".b128", 16 }, { ".bf16x2", 4 } };
    return FIRST(i, sizeof sizes / sizeof sizes[0], is(w, sizes[i].type), sizes[i].size, 0);
}

/* The number in brackets, after the first. Return: false where it is none. */
static bool times(struct ptx_text *t, struct param *p)
{
    uint64_t n;
    return number(next_word(t), &n) && n <= LAYOUT_MAX_BYTES && is(next_word(t), "]") &&
           (p->n *= n) <= LAYOUT_MAX_BYTES;
}

static bool align_to(struct ptx_text *t, struct param *p)
{
    uint64_t n;
    if (!number(next_word(t), &n) || !n || n > MAX_ALIGN || (n & (n - 1)))
        return false;
    if (!p->pointer)
        p->align = n;
    return true;
}

/* One word of a parameter. Return: false where the head cannot be understood. */
static bool param_word(struct ptx_text *t, struct word w, struct param *p)
{
    uint64_t size = size_of(w);
    p->any = true;
    if (size)
        p->size = size;
    p->pointer = p->pointer || is(w, ".ptr");
    if (is(w, ".align"))
        return align_to(t, p);
    if (is(w, "["))
        return times(t, p);
    /* vectors are no parameters of kernels: their alignment is another one */
    return is_word(w.at[0]) && !is(w, ".v2") && !is(w, ".v4");
}

/* After its last word. */
static void param_end(struct layout_draft *draft, const struct param *p, uint32_t i, uint64_t *at)
{
    uint64_t align = p->align ? p->align : p->size;
    if (!p->size) {
        draft->bad = true;
        return;
    }
    *at = (*at + align - 1) / align * align;
    layout_add(draft, i, *at, p->size * p->n);
    *at += p->size * p->n;
}

/* From after the opening parenthesis to after the closing one. */
static void params(struct ptx_text *t, struct layout_draft *draft)
{
    struct param p = { .n = 1 };
    uint64_t at = 0;
    for (uint32_t i = 0; !draft->bad;) {
        struct word w = next_word(t);
        bool last = is(w, ")");
        if (last || is(w, ",")) {
            if (p.any)
                param_end(draft, &p, i++, &at);
            if (last)
                return;
            p = (struct param){ .n = 1 };
        } else if (!w.n || !param_word(t, w, &p)) {
            draft->bad = true;
        }
    }
}

/* ------------------------------------------------------------------------- kernels */

static void kernel(struct ptx_text *t, const struct layout_sink *sink)
{
    struct layout_draft draft = { 0 };
    struct word name = next_word(t);
    struct ptx_text after = *t;
    if (!name.n || !is_word(name.at[0]))
        return;
    if (is(next_word(&after), "(")) {
        *t = after;
        params(t, &draft);
    }
    if (layout_finish(&draft, LAYOUT_MAX_BYTES))
        sink->kernel(sink->ctx, name.at, name.n, draft.at, draft.n);
}

int ptx_read(struct bytes text, const struct layout_sink *sink)
{
    struct ptx_text t = { (const char *)text.at, (const char *)text.at };
    t.end += strnlen(t.at, text.n);
    for (struct word w = next_word(&t); w.n; w = next_word(&t))
        if (is(w, ".entry"))
            kernel(&t, sink);
    return 0;
}
