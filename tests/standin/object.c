/* SPDX-License-Identifier: Apache-2.0 */
/*
 * object.c - what handles point to
 */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

static struct object *free_lists[N_OBJECT_KINDS];

void *object_new(enum object_kind kind, size_t size)
{
    struct object *object = free_lists[kind];

    if (object) {
        free_lists[kind] = object->next_free;
        memset(object, 0, size);
    } else {
        object = calloc(1, size);
        if (!object)
            return NULL;
    }
    object->size = (uint32_t)size;
    object->magic = OBJECT_MAGIC + kind;
    return object;
}

void object_free(void *pointer)
{
    struct object *object = pointer;
    unsigned kind;

    if (!object)
        return;
    kind = object->magic - OBJECT_MAGIC;
    if (kind == 0 || kind >= N_OBJECT_KINDS)
        return;
    object->magic = 0;
    object->next_free = free_lists[kind];
    free_lists[kind] = object;
}

/* Small integers are the special stream handles and mistakes: never followed. */
bool object_is(const void *pointer, enum object_kind kind)
{
    const struct object *object = pointer;

    return (uintptr_t)pointer >= 4096 && (uintptr_t)pointer % _Alignof(struct object) == 0 &&
           object->magic == OBJECT_MAGIC + kind;
}
