/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/capture/said.h"

#include "core/atomic.h"

#include <dmi/format.h>

#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>

#define MOST_PAUSED 16u /* of a thread, and of the process */

struct saying_thread;

/* A step that may go on. */
struct said_step {
    struct said_step *next; /* the one that began before */
    uint64_t sequence, number;
    uint32_t part;
    bool pauses;
    uint64_t strand;          /* of its own, where it pauses; else 0 */
    struct saying_thread *of; /* whose launches it holds for alone; NULL: the process's */
    struct saying_thread *sayer;
    struct step *rows;
    bool counted; /* as one that overlaps another */
};

/* One that has said a step. */
struct saying_thread {
    struct saying_thread *next;
    struct said_step *own; /* in force in it alone; NULL: none */
    struct said_step *
        open; /* the process's that it said and has not ended: another thread's may be in force by now */
    bool says;               /* steps of the process */
    uint64_t strand, begins; /* 0: it has no steps of its own */
};

static struct {
    pthread_mutex_t lock; /* all below */
    struct said_step *entries;
    struct saying_thread *threads;
    struct said_step *in_force; /* the process's; NULL: none */
    uint32_t n_open;            /* threads with an open one */
    uint64_t strands, begins;
    uint64_t overlaps, number, other; /* said_overlaps() */
} all = { .lock = PTHREAD_MUTEX_INITIALIZER };

/*
 * A range asks for its step each time, and steps begin and end far more seldom. So each thread keeps the answer until something has changed: changed()
 * releases, said_sequence() acquires.
 */
static uint64_t changes = 1;
static __thread __attribute__((tls_model("initial-exec"))) struct {
    uint64_t change, sequence;
} answer;

static __thread __attribute__((tls_model("initial-exec"))) struct saying_thread *self;
static pthread_key_t key;
static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static bool have_key;

/* ------------------------------------------------------------------------- entries; under the lock */

static struct said_step **place_of(const struct said_step *e)
{
    struct said_step **at = &all.entries;
    while (*at && *at != e)
        at = &(*at)->next;
    return at;
}

/* From here on a thread's launches may be of another step. */
static void changed(void)
{
    atomic_store_release(&changes, changes + 1);
}

static void set_open(struct saying_thread *t, struct said_step *e)
{
    all.n_open += (e != NULL) - (t->open != NULL);
    t->open = e;
}

/* Nothing is of it any more. Return: its rows, to be released without the lock. */
static struct step *end(struct said_step *e)
{
    struct step *rows = e ? e->rows : NULL;
    if (!e)
        return NULL;
    for (struct saying_thread *t = all.threads; t; t = t->next) {
        if (t->own == e)
            t->own = NULL;
        if (t->open == e)
            set_open(t, NULL);
    }
    if (all.in_force == e)
        all.in_force = NULL;
    *place_of(e) = e->next;
    free(e);
    return rows;
}

/* Is it in force, for somebody? */
static bool holds(const struct said_step *e)
{
    return e == all.in_force || (e->of && e->of->own == e);
}

/* One that pauses, of @of or the process; NULL: there is none. */
static struct said_step *find_paused(const struct saying_thread *of, uint64_t number, uint32_t part)
{
    for (struct said_step *e = all.entries; e; e = e->next)
        if (e->pauses && e->of == of && !holds(e) && e->number == number && e->part == part)
            return e;
    return NULL;
}

/* The one of the thread's, or of the process, of that number that pauses, or has just been resumed. */
static struct said_step *find_to_resume(const struct saying_thread *t, uint64_t number,
                                        uint32_t part)
{
    struct said_step *e = t ? t->own : NULL;
    if (e && e->pauses && e->number == number && e->part == part)
        return e;
    e = t ? find_paused(t, number, part) : NULL;
    struct said_step *now = all.in_force;
    if (!e && now && now->pauses && now->number == number && now->part == part)
        return now;
    return e || !t ? e : find_paused(NULL, number, part);
}

/* The one that paused first, where there are too many; NULL: there are not. */
static struct said_step *one_too_many(const struct saying_thread *of)
{
    struct said_step *oldest = NULL;
    uint32_t n = 0;
    for (struct said_step *e = all.entries; e; e = e->next)
        if (e->pauses && e->of == of && !holds(e)) {
            oldest = e;
            n++;
        }
    return n > MOST_PAUSED ? oldest : NULL;
}

/* Nothing says which launches are @e's, and which those of @other. */
static void count_overlap(struct said_step *e, const struct said_step *other)
{
    if (!e || e->counted)
        return;
    e->counted = true;
    if (!all.overlaps++) {
        all.number = e->number;
        all.other = other ? other->number : e->number;
    }
}

/* Some step of another thread's than @e's that is not over. */
static const struct said_step *other_open(const struct said_step *e)
{
    for (const struct saying_thread *t = all.threads; t; t = t->next)
        if (t->open && t->open != e)
            return t->open;
    return NULL;
}

/* ------------------------------------------------------------------------- threads */

static void thread_ends(void *arg)
{
    struct saying_thread *t = arg;
    struct step *rows;
    do { /* its own, paused ones too, and the one that it left open */
        pthread_mutex_lock(&all.lock);
        struct said_step *e = all.entries;
        while (e && e->of != t && e != t->open && e->sayer != t)
            e = e->next;
        bool found = e != NULL;
        if (e && e->of != t && e == all.in_force) { /* it holds on for the others */
            set_open(t, NULL);
            e->sayer = NULL;
            rows = NULL;
        } else {
            rows = end(e);
        }
        changed();
        pthread_mutex_unlock(&all.lock);
        step_release(rows);
        if (!found)
            break;
    } while (true);
    pthread_mutex_lock(&all.lock);
    struct saying_thread **at = &all.threads;
    while (*at && *at != t)
        at = &(*at)->next;
    if (*at)
        *at = t->next;
    pthread_mutex_unlock(&all.lock);
    self = NULL;
    free(t);
}

static void make_key(void)
{
    have_key = !pthread_key_create(&key, thread_ends);
}

/* The calling thread's, new where it has said nothing before. Return: NULL without memory. */
static struct saying_thread *own_thread(void)
{
    if (self)
        return self;
    pthread_once(&key_once, make_key);
    struct saying_thread *t = calloc(1, sizeof *t);
    if (!t)
        return NULL;
    if (have_key)
        pthread_setspecific(key, t);
    pthread_mutex_lock(&all.lock);
    t->next = all.threads;
    all.threads = t;
    pthread_mutex_unlock(&all.lock);
    return self = t;
}

/* ------------------------------------------------------------------------- steps */

/* What the calling thread's launches were of gives way. Under the lock. Return: rows to be released. */
static struct step *give_way(struct saying_thread *t, bool own)
{
    struct said_step *before = own ? t->own : all.in_force;
    if (own)
        t->own = NULL;
    else
        all.in_force = NULL;
    if (!before || before->pauses)
        return NULL;
    /* another thread may launch for it on and on: that is known by its entry */
    if (!own && before->sayer && before->sayer != t) {
        struct step *rows = before->rows;
        before->rows = NULL;
        return rows;
    }
    return end(before);
}

/* @e, of the process, is in force as the thread said. Under the lock. Return: rows to be released. */
static struct step *put_in_force(struct saying_thread *t, struct said_step *e)
{
    struct said_step *left = t->open != e ? t->open : NULL;
    struct step *rows = left && !left->pauses ? end(left) : NULL;
    for (struct saying_thread *o = all.threads; o; o = o->next)
        if (o->open == e)
            set_open(o, NULL); /* this thread goes on with it */
    set_open(t, e);
    t->says = true;
    e->sayer = t;
    all.in_force = e;
    return rows;
}

int said_begins(const struct dmi_step *step, uint64_t sequence, struct step *rows)
{
    struct saying_thread *t = own_thread();
    struct said_step *e = t ? calloc(1, sizeof *e) : NULL;
    struct step *gone[4] = { 0 };
    bool own = step->flags & DMI_STEP_OF_THREAD;
    if (!e) {
        step_release(rows);
        return -ENOMEM;
    }
    *e = (struct said_step){ .sequence = sequence,
                             .number = step->step,
                             .part = step->part,
                             .pauses = step->flags & DMI_STEP_PAUSES,
                             .of = own ? t : NULL,
                             .sayer = t,
                             .rows = rows };
    pthread_mutex_lock(&all.lock);
    gone[0] = give_way(t, own);
    gone[1] = end(find_paused(e->of, e->number, e->part));
    e->next = all.entries;
    all.entries = e;
    e->strand = e->pauses ? ++all.strands : 0;
    if (own && !t->strand)
        t->strand = ++all.strands;
    *(own ? &t->begins : &all.begins) += !e->pauses;
    if (own)
        t->own = e;
    else
        gone[2] = put_in_force(t, e);
    gone[3] = end(one_too_many(e->of));
    changed();
    pthread_mutex_unlock(&all.lock);
    for (size_t i = 0; i < sizeof gone / sizeof *gone; i++)
        step_release(gone[i]);
    return 0;
}

bool said_is_over(const void *next, uint64_t sequence)
{
    const struct dmi_step *step = next;
    const struct saying_thread *of = step->flags & DMI_STEP_OF_THREAD ? self : NULL;
    pthread_mutex_lock(&all.lock);
    const struct said_step *e = all.entries;
    while (e && e->sequence != sequence)
        e = e->next;
    bool goes_on = e && (e->pauses || e->of != of);
    pthread_mutex_unlock(&all.lock);
    return !goes_on;
}

bool said_refused(void)
{
    struct saying_thread *t = self;
    struct step *gone[2] = { 0 };
    bool own = t && t->strand;
    pthread_mutex_lock(&all.lock);
    gone[0] = give_way(t, own);
    *(own ? &t->begins : &all.begins) += 1;
    if (t && !own)
        gone[1] = end(t->open && !t->open->pauses ? t->open : NULL);
    changed();
    pthread_mutex_unlock(&all.lock);
    step_release(gone[0]);
    step_release(gone[1]);
    return own;
}

int said_resumes(uint64_t number, uint32_t part, uint64_t *sequence, bool *own)
{
    struct saying_thread *t = own_thread();
    struct step *gone[2] = { 0 };
    pthread_mutex_lock(&all.lock);
    struct said_step *e = find_to_resume(t, number, part);
    *own = e ? e->of != NULL : t && t->strand;
    gone[0] = give_way(t, *own);
    if (e && e->of)
        t->own = e;
    else if (e)
        gone[1] = put_in_force(t, e);
    *sequence = e ? e->sequence : DMI_NO_STEP;
    changed();
    pthread_mutex_unlock(&all.lock);
    step_release(gone[0]);
    step_release(gone[1]);
    return e ? 0 : -ENOENT;
}

/* A thread that says steps of the process ends its own, and what is in force. Under the lock. */
static void end_of_process(struct saying_thread *t, struct step *gone[2])
{
    struct said_step *mine = t ? t->open : NULL, *now = all.in_force;
    if (mine != now) {
        count_overlap(mine, now);
        if (mine)
            count_overlap(now, mine);
        gone[0] = end(mine);
    }
    if (!now)
        return;
    bool others = now->sayer && now->sayer != t && t && t->says;
    all.in_force = NULL;
    if (!others) {
        gone[1] = end(now);
        return;
    }
    gone[1] = now->rows; /* its thread may launch for it on and on */
    now->rows = NULL;
}

bool said_ends(void)
{
    struct saying_thread *t = self;
    struct step *gone[2] = { 0 };
    pthread_mutex_lock(&all.lock);
    bool own = t && t->strand && (t->own || !t->open);
    if (own)
        gone[0] = end(t->own);
    else
        end_of_process(t, gone);
    changed();
    pthread_mutex_unlock(&all.lock);
    step_release(gone[0]);
    step_release(gone[1]);
    return own;
}

/* ------------------------------------------------------------------------- launches */

/* Is what the thread launches of the process's step in force, as far as anybody knows? Under the lock. */
static bool is_certain(const struct saying_thread *t)
{
    const struct said_step *now = all.in_force;
    if (t && t->says)
        return now ? now->sayer == t : !t->open;
    return all.n_open == (now && now->sayer && now->sayer->open == now);
}

/* Under the lock. */
static struct said_step *entry_of(const struct saying_thread *t, struct said *out)
{
    if (t && t->strand && (t->own || !t->open)) {
        *out = (struct said){ .own = true, .strand = t->strand, .begins = t->begins };
        return t->own;
    }
    *out = (struct said){ .begins = all.begins, .overlaps = !is_certain(t) };
    if (!out->overlaps)
        return all.in_force;
    count_overlap(t ? t->open : NULL, all.in_force);
    count_overlap(all.in_force, t && t->open ? t->open : other_open(all.in_force));
    return NULL;
}

struct said said_now(bool hold)
{
    struct said out;
    pthread_mutex_lock(&all.lock);
    struct said_step *e = entry_of(self, &out);
    out.sequence = e ? e->sequence : DMI_NO_STEP;
    if (e && e->strand) {
        out.strand = e->strand;
        out.begins = 1;
    }
    if (hold && e)
        out.rows = step_hold(e->rows);
    pthread_mutex_unlock(&all.lock);
    return out;
}

uint64_t said_sequence(void)
{
    /* before the question: what changes meanwhile is asked for again */
    uint64_t now = atomic_load_acquire(&changes);
    if (answer.change != now) {
        answer.sequence = said_now(false).sequence;
        answer.change = now;
    }
    return answer.sequence;
}

bool said_is_gone(uint64_t sequence)
{
    pthread_mutex_lock(&all.lock);
    const struct said_step *e = all.entries;
    while (e && e->sequence != sequence)
        e = e->next;
    pthread_mutex_unlock(&all.lock);
    return !e;
}

void said_replace(struct step *next)
{
    struct step *before = NULL;
    pthread_mutex_lock(&all.lock);
    for (struct said_step *e = all.entries; e && !before; e = e->next)
        if (e->rows && e->rows->all == next->all) {
            before = e->rows;
            e->rows = step_hold(next);
        }
    pthread_mutex_unlock(&all.lock);
    step_release(before);
}

bool said_strand_lives(uint64_t strand)
{
    bool lives = !strand;
    pthread_mutex_lock(&all.lock);
    for (const struct saying_thread *t = all.threads; t && !lives; t = t->next)
        lives = t->strand == strand;
    for (const struct said_step *e = all.entries; e && !lives; e = e->next)
        lives = e->strand == strand;
    pthread_mutex_unlock(&all.lock);
    return lives;
}

uint64_t said_overlaps(uint64_t *number, uint64_t *other)
{
    pthread_mutex_lock(&all.lock);
    uint64_t n = all.overlaps;
    *number = all.number;
    *other = all.other;
    all.overlaps = 0;
    pthread_mutex_unlock(&all.lock);
    return n;
}

void said_reset(void)
{
    all.lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    all.entries = all.in_force = NULL; /* the parent's: its launches are not ours */
    all.threads = NULL;
    all.n_open = 0;
    all.begins = all.overlaps = 0;
    self = NULL;
    changed();
}
