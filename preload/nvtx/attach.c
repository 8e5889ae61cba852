/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/nvtx/attach.h"

#include "core/atomic.h"
#include "core/log.h"
#include "preload/base/handles.h"
#include "preload/nvtx/consumers.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TEXT 16384u /* bytes of a range's text that are looked at */

/* What the tool put there; NULL: nothing. Written under the lock before NVTX calls us, the same for all modules. */
#define X(name, module, number) nvtx_##name##_fn *name;
static struct {
    NVTX_CALLS(X)
} tool;
#undef X
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* modules attach in turn */

static uint64_t last_id; /* of ranges that are started where there is no tool; atomic */

/* ------------------------------------------------------------------------- texts */

/* A text on its way; wide ones become UTF-8 in @buffer. */
struct nvtx_text {
    const char *p;
    size_t n;
    char buffer[MAX_TEXT];
};

static void text_ascii(struct nvtx_text *t, const char *text)
{
    t->p = text ? text : "";
    t->n = strnlen(t->p, MAX_TEXT);
}

/* Return: bytes written to @out. What is no character becomes a question mark. */
static size_t put_utf8(char *out, uint32_t c)
{
    if (c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
        c = '?';
    unsigned n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const unsigned char lead[] = { 0, 0, 0xc0, 0xe0, 0xf0 };
    for (unsigned i = n; i-- > 1; c >>= 6)
        out[i] = (char)(0x80 | (c & 0x3f));
    out[0] = (char)(lead[n] | c);
    return n;
}

static void text_wide(struct nvtx_text *t, const wchar_t *text)
{
    t->p = t->buffer;
    t->n = 0;
    for (; text && *text && t->n < MAX_TEXT - 4; text++)
        t->n += put_utf8(&t->buffer[t->n], (uint32_t)*text);
}

/* ------------------------------------------------------------------------- registered strings */

/* A string that a handle stands for, until the process ends: NVTX has no call that ends one. */
struct registered {
    size_t n;
    char text[];
};

static struct handles strings = HANDLES_INIT; /* handle -> struct registered */

/* @handle: the tool's, NULL: there is none. Return: the handle that the application gets. */
static void *keep_string(void *handle, const struct nvtx_text *t)
{
    struct registered *r = malloc(sizeof *r + t->n);
    if (!r)
        return handle;
    r->n = t->n;
    memcpy(r->text, t->p, t->n);
    void *key = handle ? handle : r;
    if (handles_set(&strings, key, r) == r) {
        free(r);
        return handle;
    }
    return key; /* what an equal handle stood for may be in use: it stays */
}

static void text_registered(struct nvtx_text *t, const void *handle)
{
    const struct registered *r = handles_find(&strings, handle);
    t->p = r ? r->text : "";
    t->n = r ? r->n : 0;
}

static void text_of(struct nvtx_text *t, const struct nvtx_event *event)
{
    bool complete = event && event->size >= sizeof *event;
    switch (complete ? event->message_type : 0) {
    case NVTX_MESSAGE_IS_ASCII: text_ascii(t, event->message.ascii); break;
    case NVTX_MESSAGE_IS_UNICODE: text_wide(t, event->message.unicode); break;
    case NVTX_MESSAGE_IS_REGISTERED: text_registered(t, event->message.registered); break;
    default: text_ascii(t, NULL); break;
    }
}

/* ------------------------------------------------------------------------- calls of the application */

/* The tool's call, or @otherwise what NVTX says without a tool. */
#define TOOL(name, otherwise, ...) (tool.name ? tool.name(__VA_ARGS__) : (otherwise))

/* Our work around the tool's call, after which errno is as it left it. */
#define PUSH(fill, domain, answer)                                                                 \
    do {                                                                                           \
        struct nvtx_text text;                                                                     \
        int saved = errno;                                                                         \
        fill;                                                                                      \
        consumers_push(domain, text.p, text.n);                                                    \
        errno = saved;                                                                             \
        return answer;                                                                             \
    } while (0)

static int range_push_ex(const struct nvtx_event *event)
{
    PUSH(text_of(&text, event), NULL, TOOL(range_push_ex, NVTX_NO_TRACKING, event));
}

static int range_push_a(const char *message)
{
    PUSH(text_ascii(&text, message), NULL, TOOL(range_push_a, NVTX_NO_TRACKING, message));
}

static int range_push_w(const wchar_t *message)
{
    PUSH(text_wide(&text, message), NULL, TOOL(range_push_w, NVTX_NO_TRACKING, message));
}

static int domain_range_push_ex(void *domain, const struct nvtx_event *event)
{
    PUSH(text_of(&text, event), domain,
         TOOL(domain_range_push_ex, NVTX_NO_TRACKING, domain, event));
}

static void popped(const void *domain)
{
    int saved = errno;
    consumers_pop(domain);
    errno = saved;
}

static int range_pop(void)
{
    popped(NULL);
    return TOOL(range_pop, NVTX_NO_TRACKING);
}

static int domain_range_pop(void *domain)
{
    popped(domain);
    return TOOL(domain_range_pop, NVTX_NO_TRACKING, domain);
}

static uint64_t new_id(void)
{
    return atomic_add_relaxed(&last_id, 1) + 1;
}

#define START(fill, domain, answer)                                                                \
    do {                                                                                           \
        struct nvtx_text text;                                                                     \
        uint64_t id = answer;                                                                      \
        int saved = errno;                                                                         \
        fill;                                                                                      \
        consumers_start(domain, id, text.p, text.n);                                               \
        errno = saved;                                                                             \
        return id;                                                                                 \
    } while (0)

static uint64_t range_start_ex(const struct nvtx_event *event)
{
    START(text_of(&text, event), NULL, TOOL(range_start_ex, new_id(), event));
}

static uint64_t range_start_a(const char *message)
{
    START(text_ascii(&text, message), NULL, TOOL(range_start_a, new_id(), message));
}

static uint64_t range_start_w(const wchar_t *message)
{
    START(text_wide(&text, message), NULL, TOOL(range_start_w, new_id(), message));
}

static uint64_t domain_range_start_ex(void *domain, const struct nvtx_event *event)
{
    START(text_of(&text, event), domain, TOOL(domain_range_start_ex, new_id(), domain, event));
}

static void range_end(uint64_t id)
{
    int saved = errno;
    consumers_end(NULL, id);
    errno = saved;
    if (tool.range_end)
        tool.range_end(id);
}

static void domain_range_end(void *domain, uint64_t id)
{
    int saved = errno;
    consumers_end(domain, id);
    errno = saved;
    if (tool.domain_range_end)
        tool.domain_range_end(domain, id);
}

static void *domain_register_string_a(void *domain, const char *string)
{
    struct nvtx_text text;
    void *handle = TOOL(domain_register_string_a, NULL, domain, string);
    text_ascii(&text, string);
    return keep_string(handle, &text);
}

static void *domain_register_string_w(void *domain, const wchar_t *string)
{
    struct nvtx_text text;
    void *handle = TOOL(domain_register_string_w, NULL, domain, string);
    text_wide(&text, string);
    return keep_string(handle, &text);
}

/* Domains differ by their handles alone: the library needs no names of theirs. */
static void *new_domain(void)
{
    return malloc(1); /* until the process ends: its ranges may be open */
}

static void *domain_create_a(const char *name)
{
    return TOOL(domain_create_a, new_domain(), name);
}

static void *domain_create_w(const wchar_t *name)
{
    return TOOL(domain_create_w, new_domain(), name);
}

/* ------------------------------------------------------------------------- attaching */

/* A module's table of function pointers; NULL: it has none. */
static nvtx_fn ***table_of(const struct nvtx_callbacks *callbacks, int module, unsigned number)
{
    nvtx_fn ***table = NULL;
    unsigned n = 0;
    bool has = callbacks->get_module_table(module, &table, &n) && table && number < n;
    return has && table[number] ? &table[number] : NULL;
}

/* Where NVTX keeps whom it calls. */
#define X(name, module, number) nvtx_fn **name;
struct nvtx_calls {
    NVTX_CALLS(X)
};
#undef X

/* The same, and what stood there before the tool came. */
struct slots {
    struct nvtx_calls at;
#define X(name, module, number) nvtx_fn *name;
    struct {
        NVTX_CALLS(X)
    } before;
#undef X
};

/* Return: false where one is missing. */
static bool find_slots(struct slots *s, const struct nvtx_callbacks *callbacks)
{
    bool all = true;
#define X(name, module, number)                                                                    \
    {                                                                                              \
        nvtx_fn ***slot = table_of(callbacks, NVTX_MODULE_##module, number);                       \
        s->at.name = slot ? *slot : NULL;                                                          \
        s->before.name = slot ? **slot : NULL;                                                     \
        all = all && slot;                                                                         \
    }
    NVTX_CALLS(X)
#undef X
    return all;
}

/* Did a tool attach to @name? Ours is there where a tool has looked up another one, and found us. */
#define IS_TOOLS(s, name) (*(s)->at.name != (s)->before.name && *(s)->at.name != (nvtx_fn *)name)

/* Did the tool put anything there that is not what modules before had? Ours could not go on to both. */
static bool has_other_tool(const struct slots *s)
{
    bool other = false;
#define X(name, module, number)                                                                    \
    other = other || (IS_TOOLS(s, name) && tool.name && (nvtx_fn *)tool.name != *s->at.name);
    NVTX_CALLS(X)
#undef X
    return other;
}

/* Ours in front of the tool's. What the tool left alone still initialises NVTX; no call reaches that. */
static void put_ours(const struct slots *s)
{
#define X(name, module, number)                                                                    \
    if (IS_TOOLS(s, name))                                                                         \
        tool.name = (nvtx_##name##_fn *)*s->at.name;                                               \
    *s->at.name = (nvtx_fn *)name;
    NVTX_CALLS(X)
#undef X
}

bool nvtx_attach(nvtx_get_export_table *get, nvtx_initialize *initialize)
{
    const struct nvtx_callbacks *callbacks = get ? get(NVTX_TABLE_CALLBACKS) : NULL;
    struct slots slots;
    bool known = callbacks && callbacks->struct_size >= sizeof *callbacks &&
                 callbacks->get_module_table && find_slots(&slots, callbacks);
    bool has_tool = initialize && initialize(get);
    if (!known) {
        log_line("this NVTX has other tables than version 3: its ranges are not seen");
        return has_tool;
    }
    pthread_mutex_lock(&lock);
    bool other = has_other_tool(&slots);
    if (!other)
        put_ours(&slots);
    pthread_mutex_unlock(&lock);
    if (other)
        log_line(
            "an NVTX tool has functions of its own for each module: ranges of one are not seen");
    return has_tool || !other;
}
