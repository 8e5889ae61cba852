/* SPDX-License-Identifier: Apache-2.0 */
/*
 * user_object.c - user objects, and the sets of references that graphs and execs hold
 *
 * The programming guide says that a clone and an exec hold copies of their source's references. Whether a
 * driver copies or shares them shows only where a reference is released through one of the two:
 * DMI_STANDIN_CLONE_USERS chooses, since nobody has seen it.
 * Source: CUDA programming guide, "CUDA user objects"
 */
#include "graph.h"
#include "impl.h"

#include <stdlib.h>
#include <string.h>

struct user_object {
    struct object object;
    unsigned refs;
    void *ptr;
    CUhostFn destroy;
};

struct user_ref {
    struct user_object *object;
    unsigned count;
};

/** struct users - references; of one graph or exec, or of several that share them */
struct users {
    unsigned n_owners;
    size_t n;
    struct user_ref *refs;
};

/* Destructors belong to no context, so their operations have one of their own that never fails. */
static struct context no_context;

static void object_release(struct user_object *object, unsigned n)
{
    struct work *work;
    struct op *op;

    object->refs -= n < object->refs ? n : object->refs;
    if (object->refs)
        return;
    work = work_new(WORK_HOST, &no_context);
    if (work) {
        work->host.fn = object->destroy;
        work->host.data = object->ptr;
        op = op_new(&no_context, work);
        if (op)
            op_commit(op);
        else
            work_unref(work);
    }
    object_free(object);
}

/* ---- sets ---- */

static CUresult users_add(struct users **users, struct user_object *object, unsigned count)
{
    struct user_ref *grown;

    if (!*users) {
        *users = calloc(1, sizeof(**users));
        if (!*users)
            return CUDA_ERROR_OUT_OF_MEMORY;
        (*users)->n_owners = 1;
    }
    for (size_t i = 0; i < (*users)->n; i++) {
        if ((*users)->refs[i].object == object) {
            (*users)->refs[i].count += count;
            return CUDA_SUCCESS;
        }
    }
    grown = realloc((*users)->refs, ((*users)->n + 1) * sizeof(*grown));
    if (!grown)
        return CUDA_ERROR_OUT_OF_MEMORY;
    (*users)->refs = grown;
    (*users)->refs[(*users)->n++] = (struct user_ref){ object, count };
    return CUDA_SUCCESS;
}

CUresult users_copy(struct users *from, struct users **to)
{
    CUresult res = CUDA_SUCCESS;

    *to = NULL;
    if (!from)
        return CUDA_SUCCESS;
    if (driver.config.share_users) {
        from->n_owners++;
        *to = from;
        return CUDA_SUCCESS;
    }
    for (size_t i = 0; i < from->n && res == CUDA_SUCCESS; i++) {
        res = users_add(to, from->refs[i].object, from->refs[i].count);
        if (res == CUDA_SUCCESS)
            from->refs[i].object->refs += from->refs[i].count;
    }
    return res;
}

void users_drop(struct users *users)
{
    if (!users || --users->n_owners)
        return;
    for (size_t i = 0; i < users->n; i++)
        object_release(users->refs[i].object, users->refs[i].count);
    free(users->refs);
    free(users);
}

/* ---- entries ---- */

CUresult impl_cuUserObjectCreate(CUuserObject *object_out, void *ptr, CUhostFn destroy,
                                 unsigned int initialRefcount, unsigned int flags)
{
    struct user_object *object;
    DRIVER_LOCKED;

    if (!object_out || !destroy || !initialRefcount || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
        return CUDA_ERROR_INVALID_VALUE;
    object = object_new(OBJECT_USER, sizeof(*object));
    if (!object)
        return CUDA_ERROR_OUT_OF_MEMORY;
    object->refs = initialRefcount;
    object->ptr = ptr;
    object->destroy = destroy;
    *object_out = (CUuserObject)object;
    return CUDA_SUCCESS;
}

CUresult impl_cuUserObjectRetain(CUuserObject object, unsigned int count)
{
    DRIVER_LOCKED;

    if (!object_is(object, OBJECT_USER) || !count)
        return CUDA_ERROR_INVALID_VALUE;
    ((struct user_object *)object)->refs += count;
    return CUDA_SUCCESS;
}

CUresult impl_cuUserObjectRelease(CUuserObject object, unsigned int count)
{
    DRIVER_LOCKED;

    if (!object_is(object, OBJECT_USER) || !count)
        return CUDA_ERROR_INVALID_VALUE;
    object_release((struct user_object *)object, count);
    return CUDA_SUCCESS;
}

CUresult impl_cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int count,
                                      unsigned int flags)
{
    CUresult res;
    DRIVER_LOCKED;

    if (!graph_is(graph) || !object_is(object, OBJECT_USER) || !count ||
        (flags & ~(unsigned)CU_GRAPH_USER_OBJECT_MOVE))
        return CUDA_ERROR_INVALID_VALUE;
    res = users_add(&((struct graph *)graph)->users, (struct user_object *)object, count);
    if (res == CUDA_SUCCESS && !(flags & CU_GRAPH_USER_OBJECT_MOVE))
        ((struct user_object *)object)->refs += count;
    return res;
}

CUresult impl_cuGraphReleaseUserObject(CUgraph handle, CUuserObject object, unsigned int count)
{
    struct users *users;
    DRIVER_LOCKED;

    if (!graph_is(handle) || !object_is(object, OBJECT_USER) || !count)
        return CUDA_ERROR_INVALID_VALUE;
    users = ((struct graph *)handle)->users;
    for (size_t i = 0; users && i < users->n; i++) {
        if (users->refs[i].object != (struct user_object *)object || users->refs[i].count < count)
            continue;
        users->refs[i].count -= count;
        if (!users->refs[i].count)
            users->refs[i] = users->refs[--users->n];
        object_release((struct user_object *)object, count);
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
}
