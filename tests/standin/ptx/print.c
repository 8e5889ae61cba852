/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vprintf of device code. CUDA C++ Programming Guide, "Formatted Output": arguments are packed as the ABI of varargs
 * has them, %[flags][width][.precision][size]type with the sizes h, l and ll, the result is how many arguments were
 * taken, -1 without a format, -2 where it cannot be formatted.
 */
#include "print.h"
#include "ptx.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TEXT (64u << 10)

void (*ptx_print)(void *owner, const char *text, size_t n);

/* One call under way. A fault leaves it at once, so the text is the thread's, and kept. */
struct print {
    const struct rt_env *E;
    const struct thread_id *T;
    u64 args; /* where the next argument is */
    int n_args;
    size_t n;
    bool failed;
};
/* MAX_TEXT bytes, and as many for a string that is an argument */
static _Thread_local char *buffer __attribute__((tls_model("initial-exec")));
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key; /* frees it when the thread ends */
static bool key_made;

static void make_key(void)
{
    key_made = !pthread_key_create(&key, free);
}

static bool have_buffer(void)
{
    if (buffer)
        return true;
    pthread_once(&once, make_key);
    buffer = malloc(2 * MAX_TEXT);
    if (key_made)
        pthread_setspecific(key, buffer);
    return buffer;
}

static char byte_at(const struct print *p, u64 address)
{
    return *(const char *)slow_address(p->E, p->T, address, 1);
}

static void put(struct print *p, const char *text, size_t n)
{
    if (p->n + n > MAX_TEXT)
        p->failed = true;
    if (p->failed)
        return;
    memcpy(buffer + p->n, text, n);
    p->n += n;
}

static u64 argument(struct print *p, u64 n)
{
    u64 value = 0;
    p->args = (p->args + n - 1) & ~(n - 1);
    memcpy(&value, slow_address(p->E, p->T, p->args, n), n);
    p->args += n;
    p->n_args++;
    return value;
}

/* A conversion's text as the C library wants it, with numbers for its stars */
struct conversion {
    char text[64];
    size_t n;
    unsigned longs, shorts, digits;
};

/* A width of more than five digits would have the C library count for seconds. */
static void add(struct print *p, struct conversion *c, char letter)
{
    c->digits = letter >= '0' && letter <= '9' ? c->digits + 1 : 0;
    if (c->digits > 5 || c->n >= sizeof c->text - 8)
        p->failed = true;
    else
        c->text[c->n++] = letter;
}

/* Flags, width, precision and size; @at goes past them. The type is what follows. */
static u64 modifiers(struct print *p, u64 at, struct conversion *c)
{
    for (char letter; (letter = byte_at(p, at)) && strchr("#0 +-.123456789*hl", letter); at++) {
        c->longs += letter == 'l';
        c->shorts += letter == 'h';
        if (letter == '*') {
            char number[16];
            snprintf(number, sizeof number, "%d", (int)argument(p, 4));
            for (const char *d = number; *d; d++)
                add(p, c, *d);
        } else if (letter != 'h' && letter != 'l') {
            add(p, c, letter);
        }
    }
    return at;
}

static const char *finish(struct conversion *c, const char *end)
{
    for (; *end; end++)
        c->text[c->n++] = *end;
    c->text[c->n] = 0;
    return c->text;
}

/* The C library writes it where there is room; a text too long for the buffer fails the call. */
#define PUT_FORMATTED(p, ...)                                                                      \
    do {                                                                                           \
        int n_ = snprintf(buffer + (p)->n, MAX_TEXT - (p)->n, __VA_ARGS__);                        \
        if (n_ < 0 || (size_t)n_ >= MAX_TEXT - (p)->n)                                             \
            (p)->failed = true;                                                                    \
        else                                                                                       \
            (p)->n += (size_t)n_;                                                                  \
    } while (0)

static void put_integer(struct print *p, struct conversion *c, char type)
{
    bool is_signed = type == 'd' || type == 'i';
    u64 v = argument(p, c->longs ? 8 : 4);
    if (!c->longs && is_signed)
        v = (u64)(s64)(s32)v;
    if (c->shorts == 1)
        v = is_signed ? (u64)(s64)(s16)v : (u16)v;
    if (c->shorts > 1)
        v = is_signed ? (u64)(s64)(s8)v : (u8)v;
    PUT_FORMATTED(p, finish(c, (char[]){ 'l', 'l', type, 0 }), (unsigned long long)v);
}

static void put_float(struct print *p, struct conversion *c, char type)
{
    u64 bits = argument(p, 8);
    double v;
    memcpy(&v, &bits, sizeof v);
    PUT_FORMATTED(p, finish(c, (char[]){ type, 0 }), v);
}

static void put_string(struct print *p, struct conversion *c)
{
    char *text = buffer + MAX_TEXT;
    u64 from = argument(p, 8);
    size_t n = 0;
    if (!from)
        strcpy(text, "(null)");
    for (; from && n < MAX_TEXT - 1 && (text[n] = byte_at(p, from + n)); n++)
        ;
    text[from ? n : 6] = 0;
    PUT_FORMATTED(p, finish(c, "s"), text);
}

/* One conversion at @at, where its % sign has been read. Return: what follows it. */
static u64 convert(struct print *p, u64 at)
{
    struct conversion c = { .text = "%", .n = 1 };
    u64 end = modifiers(p, at, &c);
    char type = byte_at(p, end);
    if (p->failed)
        return end;
    if (type == '%') {
        put(p, "%", 1);
    } else if (type && strchr("diouxX", type)) {
        put_integer(p, &c, type);
    } else if (type && strchr("eEfFgGaA", type)) {
        put_float(p, &c, type);
    } else if (type == 'c') {
        PUT_FORMATTED(p, finish(&c, "c"), (int)argument(p, 4));
    } else if (type == 'p') {
        PUT_FORMATTED(p, finish(&c, "p"), (void *)(uintptr_t)argument(p, 8));
    } else if (type == 's') {
        put_string(p, &c);
    } else { /* no conversion: as it stands */
        put(p, "%", 1);
        return at;
    }
    return end + 1;
}

int print_formatted(const struct rt_env *E, const struct thread_id *T, u64 format, u64 args)
{
    struct print p = { .E = E, .T = T, .args = args };
    if (!format)
        return -1;
    if (!have_buffer())
        return -2;
    for (char letter; (letter = byte_at(&p, format)) && !p.failed;) {
        format++;
        if (letter == '%')
            format = convert(&p, format);
        else
            put(&p, &letter, 1);
    }
    if (p.failed)
        return -2;
    if (p.n && ptx_print)
        ptx_print(E->owner, buffer, p.n);
    return p.n_args;
}
