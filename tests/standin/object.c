/* SPDX-License-Identifier: Apache-2.0 */
/*
 * object.c - what handles point to, and what becomes of a call that is given something else
 *
 * A driver reads through the handles that it is given: one that has ended, or is of another kind, ends the
 * process. So here, with a line that names the call. README.md, "Handles", has the modes.
 */
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* So many objects of a kind have ended before the first of them comes back, unless they come back at once. */
enum { QUARANTINE = 4096, ENDED = 0xdb };

/* Ended objects of a kind, never given back to the heap: the oldest is the first of the list. */
static struct ended {
    struct object *first, *last;
    unsigned n;
} ended[N_OBJECT_KINDS];

static const char *const kind_names[N_OBJECT_KINDS] = {
    [OBJECT_CONTEXT] = "context",
    [OBJECT_STREAM] = "stream",
    [OBJECT_EVENT] = "event",
    [OBJECT_MODULE] = "module",
    [OBJECT_LIBRARY] = "library",
    [OBJECT_KERNEL] = "kernel",
    [OBJECT_FUNCTION] = "function",
    [OBJECT_GRAPH] = "graph",
    [OBJECT_NODE] = "graph node",
    [OBJECT_EXEC] = "graph exec",
    [OBJECT_USER] = "user object",
    [OBJECT_POOL] = "memory pool",
    [OBJECT_ARRAY] = "array",
    [OBJECT_GREEN] = "green context",
    [OBJECT_RESOURCE_DESC] = "resource descriptor",
    [OBJECT_PHYSICAL] = "piece of memory",
    [OBJECT_MIPMAP] = "mipmapped array",
    [OBJECT_TEXTURE] = "texture",
    [OBJECT_SURFACE] = "surface",
};

static struct object *take_ended(enum object_kind kind)
{
    struct ended *list = &ended[kind];
    struct object *object = list->first;

    if (!object || (driver.config.handles == HANDLES_STRICT && list->n <= QUARANTINE))
        return NULL;
    list->first = object->next_ended;
    list->n--;
    return object;
}

void *object_new(enum object_kind kind, size_t size)
{
    struct object *object = take_ended(kind);

    if (object)
        memset(object, 0, size);
    else
        object = calloc(1, size);
    if (!object)
        return NULL;
    object->size = (uint32_t)size;
    object->magic = OBJECT_MAGIC + kind;
    return object;
}

static bool is_kind(unsigned kind)
{
    return kind > 0 && kind < N_OBJECT_KINDS;
}

/* What ended keeps its kind, for the message about who uses it still. */
void object_end(void *pointer)
{
    struct object *object = pointer;

    if (is_kind(object->magic - OBJECT_MAGIC))
        object->magic += OBJECT_ENDED - OBJECT_MAGIC;
}

void object_free(void *pointer)
{
    struct object *object = pointer;
    struct ended *list;

    if (!object)
        return;
    object_end(object);
    if (!is_kind(object->magic - OBJECT_ENDED))
        return;
    list = &ended[object->magic - OBJECT_ENDED];
    memset(object + 1, ENDED, object->size - sizeof(*object));
    object->next_ended = NULL;
    if (!list->first) {
        list->first = list->last = object;
    } else if (driver.config.handles == HANDLES_STRICT) {
        list->last->next_ended = object;
        list->last = object;
    } else {
        object->next_ended = list->first;
        list->first = object;
    }
    list->n++;
}

/* Small integers are the special stream handles and mistakes. */
static bool is_address(const void *pointer)
{
    return (uintptr_t)pointer >= 4096 && (uintptr_t)pointer % _Alignof(struct object) == 0;
}

bool object_live(const void *pointer, enum object_kind kind)
{
    return is_address(pointer) &&
           ((const struct object *)pointer)->magic == OBJECT_MAGIC + (unsigned)kind;
}

static void say(const void *handle, enum object_kind kind, const char *state, const char *what)
{
    char line[256];
    int n = snprintf(line, sizeof(line), "stand-in driver: %s: %p is no %s but %s%s\n",
                     entry_table[tls.entry].symbol, handle, kind_names[kind], state, what);

    if (n > 0)
        (void)!write(STDERR_FILENO, line, (size_t)n);
    log_fault(entry_table[tls.entry].symbol, handle, kind_names[kind], state, what);
}

/* As the driver's own read of it would end. */
static _Noreturn void fault(void)
{
    for (;;)
        (void)*(volatile const uint32_t *)(uintptr_t)HANDLE_POISON;
}

static void say_object(const struct object *object, enum object_kind wanted)
{
    unsigned live = object->magic - OBJECT_MAGIC, gone = object->magic - OBJECT_ENDED;

    if (is_kind(live))
        say(object, wanted, strchr("ae", kind_names[live][0]) ? "an " : "a ", kind_names[live]);
    else if (is_kind(gone))
        say(object, wanted, "an ended ", kind_names[gone]);
    else
        say(object, wanted, "", "nothing of the driver's");
}

void object_wild(void)
{
    if (tls.asked)
        say(tls.asked, tls.asked_kind, "", "nothing that can be read");
    tls.asked = NULL;
}

/* tls.asked: should reading it fault, the handler says what was read and for whom. */
bool object_is(const void *handle, enum object_kind kind)
{
    bool live;

    if (!handle)
        return false;
    tls.asked_kind = kind;
    tls.asked = handle;
    live = is_address(handle) &&
           ((const volatile struct object *)handle)->magic == OBJECT_MAGIC + (unsigned)kind;
    tls.asked = NULL;
    if (live || driver.config.handles == HANDLES_LENIENT)
        return live;
    if (is_address(handle))
        say_object(handle, kind);
    else
        say(handle, kind, "", "a small or odd number");
    fault();
}

void handles_poison(void *array, size_t first, size_t n)
{
    void **handles = array;

    for (size_t i = first; i < n; i++)
        handles[i] =
            driver.config.handles == HANDLES_LENIENT ? NULL : (void *)(uintptr_t)HANDLE_POISON;
}
