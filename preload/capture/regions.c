/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/capture/regions.h"

#include "core/grow.h"
#include "preload/base/session.h"

#include <pthread.h>
#include <stdlib.h>

struct region {
    uint64_t base, n_bytes;
    uint64_t handle; /* of what is mapped there; 0: it is an allocation */
    bool shared;
};

static struct {
    pthread_mutex_t lock;
    struct region *at;
    size_t n, room;
    uint64_t *shared; /* handles */
    size_t n_shared;
} regions = { .lock = PTHREAD_MUTEX_INITIALIZER };

static bool overlaps(const struct region *r, uint64_t base, uint64_t n_bytes)
{
    return base < r->base + r->n_bytes && r->base < base + n_bytes;
}

static bool handle_is_shared(uint64_t handle)
{
    for (size_t i = 0; i < regions.n_shared; i++)
        if (regions.shared[i] == handle)
            return true;
    return false;
}

/* Under the lock. Without memory nobody knows what is shared: all is left alone. */
static void add(struct region region)
{
    if (grow((void **)&regions.at, regions.n, &regions.room, sizeof *regions.at, 64)) {
        session_give_up_all("no memory to note mapped and shared memory");
        return;
    }
    regions.at[regions.n++] = region;
}

void regions_mapped(uint64_t base, uint64_t n_bytes, uint64_t handle)
{
    pthread_mutex_lock(&regions.lock);
    add((struct region){ base, n_bytes, handle, handle_is_shared(handle) });
    pthread_mutex_unlock(&regions.lock);
}

void regions_end(uint64_t base, uint64_t n_bytes)
{
    pthread_mutex_lock(&regions.lock);
    for (size_t i = 0; i < regions.n;)
        if (overlaps(&regions.at[i], base, n_bytes))
            regions.at[i] = regions.at[--regions.n];
        else
            i++;
    pthread_mutex_unlock(&regions.lock);
}

void regions_share_handle(uint64_t handle)
{
    pthread_mutex_lock(&regions.lock);
    uint64_t *grown = handle_is_shared(handle)
                          ? NULL
                          : realloc(regions.shared, (regions.n_shared + 1) * sizeof *grown);
    if (grown) {
        regions.shared = grown;
        regions.shared[regions.n_shared++] = handle;
    } else if (!handle_is_shared(handle)) {
        session_give_up_all("no memory to note mapped and shared memory");
    }
    for (size_t i = 0; i < regions.n; i++)
        regions.at[i].shared = regions.at[i].shared || regions.at[i].handle == handle;
    pthread_mutex_unlock(&regions.lock);
    session_memory_freed(); /* what was found before is looked at again */
}

void regions_share(uint64_t base, uint64_t n_bytes)
{
    pthread_mutex_lock(&regions.lock);
    add((struct region){ base, n_bytes, 0, true });
    pthread_mutex_unlock(&regions.lock);
    session_memory_freed(); /* the same */
}

bool regions_is_piece(uint64_t address)
{
    bool piece = false;
    pthread_mutex_lock(&regions.lock);
    for (size_t i = 0; i < regions.n && !piece; i++)
        piece = regions.at[i].handle && overlaps(&regions.at[i], address, 1);
    pthread_mutex_unlock(&regions.lock);
    return piece;
}

bool regions_are_shared(uint64_t base, uint64_t n_bytes)
{
    bool shared = false;
    pthread_mutex_lock(&regions.lock);
    for (size_t i = 0; i < regions.n && !shared; i++)
        shared = regions.at[i].shared && overlaps(&regions.at[i], base, n_bytes);
    pthread_mutex_unlock(&regions.lock);
    return shared;
}

void regions_reset(void)
{
    pthread_mutex_t unlocked = PTHREAD_MUTEX_INITIALIZER;
    regions.lock = unlocked;
    regions.n = regions.n_shared = 0;
}
