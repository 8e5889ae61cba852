/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/trace/range_ring.h"

#include "core/atomic.h"
#include "core/clock.h"
#include "preload/capture/said.h"

#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* One producer, its thread; one consumer, the collector. */
struct range_ring {
    int state;                   /* enum ring_state; atomic */
    uint32_t thread;             /* as the system numbers it */
    uint64_t head, tail;         /* head: released by its thread; tail: released by the collector */
    struct range_entry *entries; /* RANGE_ENTRIES; stays with the place */
    uint32_t depth, missed;      /* missed: open ones beyond RANGE_DEPTH */
    struct range_entry open[RANGE_DEPTH];
};

enum ring_state {
    RING_UNUSED = 0, /* released by the collector, acquired by claim() */
    RING_USED = 1,
    RING_LEFT = 2, /* its thread has ended. Released by leave(), acquired by range_ring_take() */
};

static struct range_ring rings[RANGE_THREADS];
static bool on;       /* atomic */
static uint64_t lost; /* atomic */
static __thread __attribute__((tls_model("initial-exec"))) struct range_ring *self;
static __thread __attribute__((tls_model("initial-exec"))) bool placeless; /* all rings are taken */

static pthread_key_t key;
static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static bool have_key;

static void leave(void *ring)
{
    self = NULL;
    atomic_store_release(&((struct range_ring *)ring)->state, RING_LEFT); /* to range_ring_take() */
}

static void make_key(void)
{
    have_key = !pthread_key_create(&key, leave);
}

void range_ring_use(bool use)
{
    atomic_store_relaxed(&on, use);
}

/* Memory that is touched as it is used. */
static struct range_entry *map_entries(void)
{
    void *p = mmap(NULL, RANGE_ENTRIES * sizeof(struct range_entry), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static bool claim(struct range_ring *r)
{
    int unused = RING_UNUSED;
    if (!atomic_cas_acq_rel(&r->state, &unused, RING_USED))
        return false;
    if (!r->entries && !(r->entries = map_entries())) {
        atomic_store_release(&r->state, RING_UNUSED); /* to claim() */
        return false;
    }
    r->thread = (uint32_t)gettid();
    r->depth = r->missed = 0;
    return true;
}

/* The calling thread's, NULL: there is none for it. */
static struct range_ring *own(void)
{
    if (self || placeless)
        return self;
    pthread_once(&key_once, make_key);
    for (uint32_t i = 0; !self && i < RANGE_THREADS; i++)
        if (claim(&rings[i]))
            self = &rings[i];
    placeless = !self;
    if (self && have_key)
        pthread_setspecific(key, self);
    return self;
}

/* ------------------------------------------------------------------------- a thread's */

static int lose(void)
{
    atomic_add_relaxed(&lost, 1);
    return -ENOSPC;
}

/* The innermost open one of @owner, as a place on the stack; the depth: there is none. */
static uint32_t innermost(const struct range_ring *r, const void *owner)
{
    for (uint32_t i = r->depth; i-- > 0;)
        if (r->open[i].owner == owner)
            return i;
    return r->depth;
}

/* Within those that are open. */
static void begin(const struct range_ring *r, struct range_entry *e, enum dmi_range_source source,
                  const char *name, size_t n)
{
    n = n < RANGE_BYTES - 1 ? n : RANGE_BYTES - 1;
    e->step = said_sequence();
    e->thread = r->thread;
    e->depth = (uint16_t)r->depth;
    e->source = (uint8_t)source;
    e->n_facts = 0;
    memcpy(e->name, name, n);
    e->name[n] = 0;
}

/* It has ended. Return: false: there is no room. */
static bool put(struct range_ring *r, const struct range_entry *e)
{
    if (r->head - atomic_load_acquire(&r->tail) >= RANGE_ENTRIES) /* of range_ring_take() */
        return false;
    memcpy(&r->entries[r->head % RANGE_ENTRIES], e,
           offsetof(struct range_entry, facts) + e->n_facts * sizeof *e->facts);
    atomic_store_release(&r->head, r->head + 1); /* to range_ring_take() */
    return true;
}

int range_ring_begin(const void *owner, enum dmi_range_source source, const char *name, size_t n)
{
    if (!atomic_load_relaxed(&on))
        return 1;
    struct range_ring *r = own();
    if (!r)
        return lose();
    if (r->depth == RANGE_DEPTH) {
        r->missed++;
        return lose();
    }
    struct range_entry *e = &r->open[r->depth];
    begin(r, e, source, name, n);
    r->depth++;
    e->owner = owner;
    e->begin_ns = clock_mono_ns();
    return 0;
}

void range_ring_since(uint64_t begin_ns, enum dmi_range_source source)
{
    struct range_entry *e = &self->open[self->depth - 1];
    e->begin_ns = begin_ns;
    e->source = (uint8_t)source;
}

int range_ring_end(const void *owner)
{
    struct range_ring *r = self;
    if (!atomic_load_relaxed(&on))
        return 1;
    if (!r)
        return -ENOENT;
    if (r->missed) { /* it was lost when it began */
        r->missed--;
        return -ENOSPC;
    }
    uint64_t now = clock_mono_ns();
    uint32_t at = innermost(r, owner);
    if (at == r->depth)
        return -ENOENT;
    struct range_entry *e = &r->open[at];
    e->end_ns = now;
    bool room = put(r, e);
    r->depth--;
    memmove(e, e + 1, (r->depth - at) * sizeof *e); /* of other owners that stay open */
    return room ? 0 : lose();
}

void range_ring_call(const char *name, uint64_t begin_ns, uint64_t end_ns)
{
    if (end_ns - begin_ns < RANGE_CALL_NS || !atomic_load_relaxed(&on))
        return;
    int saved = errno;
    struct range_entry e;
    struct range_ring *r = own();
    if (r) {
        begin(r, &e, DMI_RANGE_CALL, name, strlen(name));
        e.begin_ns = begin_ns;
        e.end_ns = end_ns;
    }
    if (!r || !put(r, &e))
        lose();
    errno = saved;
}

int range_ring_fact(const void *owner, const char *name, int64_t value)
{
    struct range_ring *r = self;
    if (!atomic_load_relaxed(&on))
        return 1;
    uint32_t at = r && !r->missed ? innermost(r, owner) : 0;
    if (!r || r->missed || at == r->depth)
        return -ENOENT;
    struct range_entry *e = &r->open[at];
    if (e->n_facts == RANGE_FACTS)
        return -ENOSPC;
    struct range_fact *f = &e->facts[e->n_facts++];
    size_t n = strnlen(name, RANGE_KEY_BYTES - 1);
    memcpy(f->key, name, n);
    f->key[n] = 0;
    f->value = value;
    return 0;
}

/* ------------------------------------------------------------------------- the collector's */

static void take(struct range_ring *r, void (*fn)(const struct range_entry *entry))
{
    bool left = atomic_load_acquire(&r->state) == RING_LEFT;            /* of leave() */
    uint64_t head = atomic_load_acquire(&r->head);                      /* of range_ring_end() */
    for (; r->tail < head; atomic_store_release(&r->tail, r->tail + 1)) /* to range_ring_end() */
        fn(&r->entries[r->tail % RANGE_ENTRIES]);
    if (left)
        atomic_store_release(&r->state, RING_UNUSED); /* to claim() */
}

void range_ring_take(void (*fn)(const struct range_entry *entry))
{
    for (uint32_t i = 0; i < RANGE_THREADS; i++)
        if (atomic_load_relaxed(&rings[i].state) != RING_UNUSED)
            take(&rings[i], fn);
}

uint64_t range_ring_lost(void)
{
    return atomic_load_relaxed(&lost);
}

void range_ring_reset(void)
{
    for (uint32_t i = 0; i < RANGE_THREADS; i++) {
        rings[i].head = rings[i].tail = 0;
        rings[i].state = RING_UNUSED;
    }
    self = NULL;
    placeless = false;
    on = false;
    lost = 0;
}
