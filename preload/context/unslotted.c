/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/context/unslotted.h"

#include "preload/base/driver.h"

#include <errno.h>
#include <stdlib.h>

static struct unslotted_launch *at(struct unslotted *all, uint64_t launch)
{
    return &all->launches[launch % UNSLOTTED_MAX];
}

int unslotted_init(struct unslotted *all, void *map, uint32_t first, uint32_t n_bytes)
{
    *all = (struct unslotted){ 0 };
    if (!n_bytes)
        return 0;
    all->launches = calloc(UNSLOTTED_MAX, sizeof *all->launches);
    return all->launches ? row_lists_init(&all->lists, map, first, n_bytes) : -ENOMEM;
}

void unslotted_deinit(struct unslotted *all)
{
    row_lists_deinit(&all->lists);
    free(all->launches);
    *all = (struct unslotted){ 0 };
}

/* The oldest launch, if an event tells of it. Return: UNSLOTTED_NONE: none does. */
static uint64_t oldest(struct unslotted *all, pthread_mutex_t *lock, CUevent *event)
{
    uint64_t launch = UNSLOTTED_NONE;
    pthread_mutex_lock(lock);
    while (all->tail < all->head && at(all, all->tail)->over)
        all->tail++;
    if (all->tail < all->head && at(all, all->tail)->recorded) {
        launch = all->tail;
        *event = at(all, launch)->event;
    }
    pthread_mutex_unlock(lock);
    return launch;
}

static void is_over(struct unslotted *all, pthread_mutex_t *lock, uint64_t launch)
{
    pthread_mutex_lock(lock);
    if (all->tail == launch) /* another thread may have seen it first */
        all->tail++;
    pthread_mutex_unlock(lock);
}

void unslotted_settle(struct unslotted *all, pthread_mutex_t *lock)
{
    CUevent event;
    uint64_t launch;
    struct stream_relaxed relaxed = stream_relax();
    while ((launch = oldest(all, lock, &event)) != UNSLOTTED_NONE &&
           driver_table.cuEventQuery(event) == CUDA_SUCCESS)
        is_over(all, lock, launch);
    stream_unrelax(&relaxed);
}

uint64_t unslotted_begin(struct unslotted *all)
{
    if (all->head - all->tail == UNSLOTTED_MAX)
        return UNSLOTTED_NONE;
    struct unslotted_launch *l = at(all, all->head);
    l->recorded = l->over = false;
    return all->head++;
}

void unslotted_launched(struct unslotted *all, pthread_mutex_t *lock, uint64_t launch,
                        struct stream stream, bool ran)
{
    struct unslotted_launch *l = at(all, launch);
    /* a launch whose event cannot be recorded keeps its lists for good */
    bool recorded = ran && stream_record(stream, &l->event);
    pthread_mutex_lock(lock);
    l->recorded = recorded;
    l->over = !ran;
    pthread_mutex_unlock(lock);
}

void unslotted_give_back(struct unslotted *all)
{
    for (uint32_t i = 0; all->launches && i < UNSLOTTED_MAX; i++)
        if (all->launches[i].event)
            driver_table.cuEventDestroy_v2(all->launches[i].event);
}
