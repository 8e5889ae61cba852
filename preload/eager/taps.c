/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/eager/taps.h"

#include "core/any.h"
#include "core/atomic.h"
#include "core/sorted.h"
#include "policy/nearest.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_STRANGERS 64 /* names that are remembered though no site has them */

/* Never freed once it is published: a tap may be looking at it. */
struct tap_table {
    size_t n;
    struct func **taps; /* by name, ascending */
};

static struct tap_table taps;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Names are published one by one: entries below @n_strangers stay. */
static char *strangers[MAX_STRANGERS];
static uint32_t n_strangers; /* atomic; added to under the lock */

/* ------------------------------------------------------------------------- the table */

static int by_name(const void *a, const void *b)
{
    return strcmp((*(struct func *const *)a)->name, (*(struct func *const *)b)->name);
}

static struct func *find(const char *name)
{
    size_t i;
    SEARCH(i, taps.n, strcmp(taps.taps[i]->name, name) < 0);
    return i < taps.n && !strcmp(taps.taps[i]->name, name) ? taps.taps[i] : NULL;
}

/* An entry of its own for each name. Return: false without memory. */
static bool add(const struct spec *spec, const char *name)
{
    for (size_t i = 0; i < taps.n; i++)
        if (!strcmp(taps.taps[i]->name, name))
            return true;
    struct func *func = calloc(1, sizeof *func);
    if (!func || !(func->name = strdup(name))) {
        free(func);
        return false;
    }
    spec_match_tap(spec, name, &func->match);
    taps.taps[taps.n++] = func;
    return true;
}

bool taps_init(const struct spec *spec)
{
    taps = (struct tap_table){ .taps = calloc(spec->n_sites + 1, sizeof *taps.taps) };
    for (uint32_t i = 0; taps.taps && i < spec->n_sites; i++)
        if (spec->sites[i].about.tap && !add(spec, spec->sites[i].about.tap))
            return false;
    if (!taps.taps)
        return false;
    qsort(taps.taps, taps.n, sizeof *taps.taps, by_name);
    return true;
}

/* ------------------------------------------------------------------------- names of nobody */

static bool is_stranger(const char *name, uint32_t n)
{
    return ANY(i, n, !strcmp(strangers[i], name));
}

static void note_stranger(const char *name)
{
    uint32_t n = atomic_load_acquire(&n_strangers); /* of the release below */
    if (n == MAX_STRANGERS || is_stranger(name, n))
        return;
    pthread_mutex_lock(&lock);
    n = n_strangers;
    if (n < MAX_STRANGERS && !is_stranger(name, n) && (strangers[n] = strdup(name)))
        atomic_store_release(&n_strangers, n + 1); /* to note_stranger(), taps_nearest() */
    pthread_mutex_unlock(&lock);
}

const struct func *taps_find(const char *name)
{
    const struct func *func = find(name);
    if (!func)
        note_stranger(name);
    return func;
}

void taps_nearest(const char *name, char *buffer, size_t n_buffer)
{
    uint32_t n = atomic_load_acquire(&n_strangers); /* of note_stranger() */
    *buffer = 0;
    if (!n)
        return;
    int near = nearest_word(name, strlen(name), (const char *const *)strangers, n);
    size_t used = (size_t)snprintf(buffer, n_buffer, "; tapped were, and are in no site: %s",
                                   strangers[near < 0 ? 0 : near]);
    for (uint32_t i = 0; i < n && used < n_buffer; i++)
        if ((int)i != (near < 0 ? 0 : near))
            used += (size_t)snprintf(buffer + used, n_buffer - used, ", %s", strangers[i]);
}

/* ------------------------------------------------------------------------- layers */

static int32_t n_layers;                  /* known; atomic */
static int32_t highest = -1, latest = -1; /* layers that taps had; atomic */

int32_t taps_n_layers(const struct dmi_tap *tap)
{
    int32_t known = atomic_load_relaxed(&n_layers);
    if (tap->n_layers > 0) {
        if (known != tap->n_layers)
            atomic_store_relaxed(&n_layers, tap->n_layers);
        return tap->n_layers;
    }
    if (known || tap->layer < 0)
        return known;
    int32_t most = atomic_load_relaxed(&highest);
    if (tap->layer > most)
        atomic_store_relaxed(&highest, tap->layer);
    else if (tap->layer < atomic_load_relaxed(&latest))
        atomic_store_relaxed(&n_layers, known = most + 1);
    atomic_store_relaxed(&latest, tap->layer);
    return known;
}

void taps_reset(void)
{
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    taps = (struct tap_table){ 0 };
    n_strangers = 0;
    n_layers = 0;
    highest = latest = -1;
}
