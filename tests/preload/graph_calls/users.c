/* SPDX-License-Identifier: Apache-2.0 */
/*
 * User objects, whose destructors must be called when the last reference goes and not before, and the
 * moments at which everything is at rest and memory can be read.
 */
#include "program.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void CUDA_CB host_add(void *data)
{
    __atomic_fetch_add((int *)data, 1, __ATOMIC_RELAXED);
}

void users_add(struct program *p, unsigned *to, const unsigned *from)
{
    for (int i = 0; i < p->n_objects; i++) {
        to[i] += from[i];
        p->object_refs[i] += from[i];
    }
}

void users_drop(struct program *p, unsigned *of)
{
    for (int i = 0; i < p->n_objects; i++) {
        p->object_refs[i] -= of[i];
        of[i] = 0;
    }
}

void op_user_object(struct program *p)
{
    int graph = some_graph(p, chance(p, 80)), i = p->n_objects;
    if (graph < 0 || in_body(p, graph) || i == MAX_OBJECTS)
        return;
    unsigned count = 1 + pick(p, 2);
    bool move = chance(p, 70);
    CUgraph handle = p->graphs[graph].handle;
    say(p, "object %d", i);
    CUresult r = CALL(p, cuUserObjectCreate, &p->objects[i], &p->object_calls[i], host_add, count,
                      CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
    say_result(p, r);
    if (r != CUDA_SUCCESS)
        return;
    p->n_objects++;
    p->object_refs[i] = count;
    say(p, "%s to", move ? "moved" : "kept, and given");
    say_graph(p, handle);
    r = CALL(p, cuGraphRetainUserObject, handle, p->objects[i], count,
             move ? CU_GRAPH_USER_OBJECT_MOVE : 0);
    say_result(p, r);
    p->graphs[graph].users[i] += count;
    p->object_refs[i] += move ? 0 : count;
    p->object_mine[i] = !move;
    if (!move && count > 1) {
        say(p, "released once");
        r = CALL(p, cuUserObjectRelease, p->objects[i], count - 1);
        say_result(p, r);
        p->object_refs[i] -= count - 1;
    }
}

/* More references, or fewer, of what the program or a graph holds. */
void op_user_retain(struct program *p)
{
    if (!p->n_objects)
        return;
    int i = (int)pick(p, (uint32_t)p->n_objects), graph = some_graph(p, false);
    CUresult r;
    if (!p->object_refs[i])
        return; /* gone */
    if (p->object_mine[i] && chance(p, 40)) {
        say(p, "object %d released", i);
        r = CALL(p, cuUserObjectRelease, p->objects[i], 1);
        p->object_mine[i] = false;
        p->object_refs[i]--;
    } else if (graph >= 0 && p->graphs[graph].users[i] && chance(p, 60)) {
        say(p, "object %d released by", i);
        say_graph(p, p->graphs[graph].handle);
        r = CALL(p, cuGraphReleaseUserObject, p->graphs[graph].handle, p->objects[i], 1);
        p->graphs[graph].users[i]--;
        p->object_refs[i]--;
    } else if (graph >= 0 && !in_body(p, graph)) {
        say(p, "object %d retained by", i);
        say_graph(p, p->graphs[graph].handle);
        r = CALL(p, cuGraphRetainUserObject, p->graphs[graph].handle, p->objects[i], 1, 0);
        p->graphs[graph].users[i]++;
        p->object_refs[i]++;
    } else {
        return;
    }
    say_result(p, r);
}

/* ------------------------------------------------------------------------- at rest */

/* Destructors run on a thread of the driver's, some time after the last reference went. */
static void say_objects(struct program *p)
{
    struct timespec pause = { .tv_nsec = 200000 };
    for (int i = 0; i < p->n_objects; i++) {
        int calls = 0;
        for (int tries = 0; tries < 50000; tries++) {
            calls = __atomic_load_n(&p->object_calls[i], __ATOMIC_RELAXED);
            if (calls || p->object_refs[i])
                break;
            nanosleep(&pause, NULL);
        }
        if (calls || !p->object_refs[i])
            say(p, " o%d:%d", i, calls);
    }
}

static CUresult say_area(struct program *p, const char *name, CUdeviceptr base)
{
    unsigned char *now = malloc(N_SLOTS * SLOT_BYTES);
    CUresult r =
        now ? CALL(p, cuMemcpyDtoH_v2, now, base, N_SLOTS * SLOT_BYTES) : CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t hash = 0xcbf29ce484222325u;
    unsigned written = 0, writers = 0;
    for (size_t slot = 0; r == CUDA_SUCCESS && slot < N_SLOTS; slot++) {
        uint32_t count;
        memcpy(&count, now + slot * SLOT_BYTES + SLOT_ROWS * 4, sizeof count);
        writers += base == p->slots ? count : 0;
        bool any = false;
        for (size_t i = 0; i < SLOT_BYTES; i++) {
            hash = (hash ^ now[slot * SLOT_BYTES + i]) * 0x100000001b3u;
            any = any || now[slot * SLOT_BYTES + i];
        }
        written += any;
        if (getenv("GRAPH_CALLS_SLOTS") && any && base == p->slots)
            fprintf(stderr, "@%ld slot %zu: %u writers\n", p->at, slot, count);
    }
    say(p, " %s %u by %u %016llx", name, written, writers, (unsigned long long)hash);
    free(now);
    return r;
}

void op_sync(struct program *p)
{
    say(p, "sync");
    CUresult r = CALL(p, cuCtxSynchronize);
    say_result(p, r);
    say(p, "memory");
    r = say_area(p, "slots", p->slots);
    if (r == CUDA_SUCCESS)
        r = say_area(p, "fills", p->fills);
    if (r == CUDA_SUCCESS)
        r = say_area(p, "copies", p->copies);
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < N_SLOTS * SLOT_BYTES; i++)
        hash = (hash ^ p->host_copies[i]) * 0x100000001b3u;
    say(p, " host %016llx", (unsigned long long)hash);
    say_result(p, r);
    say(p, "tallies");
    for (int i = 0; i < N_TALLIES; i++)
        say(p, " %d", p->tallies[i]);
    say(p, " objects");
    say_objects(p);
    for (int i = 0; i < N_EVENTS; i++) {
        r = CALL(p, cuEventQuery, p->events[i]);
        say(p, " e%d=%d", i, (int)r);
    }
    say_end(p);
}
