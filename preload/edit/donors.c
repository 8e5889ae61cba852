/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/edit/donors.h"

#include "core/atomic.h"
#include "preload/context/bank.h"
#include "preload/edit/in_flight.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define N_HEADS 1024u
#define MAX     65536u

struct donor {
    struct in_flight in_flight; /* first */
    struct donor *next;         /* of those with the same hash, or that are released together */
    struct name *of;            /* NULL: it is forgotten */
    struct donor *beside;       /* the next one of the name */
    uint32_t refs;              /* atomic; one is the table's */
    uint32_t number;            /* from 1, and never again */
    bool keep, ended;
    uint64_t hash;
    uint64_t effect; /* of the edits that it has, in it */
    uint64_t asked,
        asked_effect; /* the number of the version that was asked for last, and what it would do in the donor */
    char *request, *tags; /* NULL: it has none */
};

/* Under what rows are saved. Names stay, as edits have few. */
struct name {
    struct name *next;
    struct donor *donors;
    char text[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* never held across a driver call */
static struct book {
    struct donor *heads[N_HEADS]; /* by name and request; not those that have ended */
    struct name *names;
    uint32_t n, last_number;
} book;

/* ------------------------------------------------------------------------- under the lock */

static struct name *find_name(const char *text)
{
    struct name *n = book.names;
    while (n && strcmp(n->text, text))
        n = n->next;
    return n;
}

static struct name *make_name(const char *text)
{
    struct name *n = find_name(text);
    if (n || !(n = calloc(1, sizeof *n + strlen(text) + 1)))
        return n;
    memcpy(n->text, text, strlen(text));
    n->next = book.names;
    book.names = n;
    return n;
}

static uint64_t hash_of(const char *name, const char *request)
{
    return XXH3_64bits_withSeed(request, strlen(request), XXH3_64bits(name, strlen(name)));
}

/* Where the donor hangs, or would. */
static struct donor **find(const char *name, const char *request)
{
    uint64_t hash = hash_of(name, request);
    struct donor **at = &book.heads[hash % N_HEADS];
    while (*at && ((*at)->hash != hash || strcmp((*at)->request, request) ||
                   strcmp((*at)->of->text, name)))
        at = &(*at)->next;
    return at;
}

/* It is found by its request no more. */
static void unhang(struct donor *d)
{
    struct donor **at = find(d->of->text, d->request);
    if (*at == d)
        *at = d->next;
    d->next = NULL;
}

/* It is nobody's source any more. */
static void forget(struct donor *d)
{
    struct donor **at = &d->of->donors;
    if (!d->ended)
        unhang(d);
    while (*at != d)
        at = &(*at)->beside;
    *at = d->beside;
    d->of = NULL;
    book.n--;
}

static struct donor *hold(struct donor *d)
{
    if (d)
        atomic_add_relaxed(&d->refs, 1);
    return d;
}

/* ------------------------------------------------------------------------- donors */

static void donor_free(struct donor *d)
{
    free(d->request);
    free(d->tags);
    free(d);
}

static struct donor *donor_new(struct edit_version *version, const struct dmi_span *span)
{
    struct donor *d = calloc(1, sizeof *d);
    if (!d)
        return NULL;
    d->request = strdup(span->request_id);
    d->tags = span->tags ? strdup(span->tags) : NULL;
    d->effect = edits_effect(version->uses, version->n, span->request_id, span->tags);
    d->asked = version->number;
    d->asked_effect = d->effect;
    d->refs = 1;
    if (d->request && (!span->tags || d->tags))
        return d;
    donor_free(d);
    return NULL;
}

/* Takes over @d. Return: false without memory, or where there are too many. */
static bool hang(struct donor *d, const char *name, bool keep)
{
    struct name *of = d && book.n < MAX ? make_name(name) : NULL;
    if (!of) {
        if (d)
            donor_free(d);
        return false;
    }
    d->hash = hash_of(name, d->request);
    d->next = book.heads[d->hash % N_HEADS];
    book.heads[d->hash % N_HEADS] = d;
    d->of = of;
    d->beside = of->donors;
    of->donors = d;
    d->number = ++book.last_number;
    d->keep = keep;
    book.n++;
    return true;
}

struct donor *donors_add(const char *name, bool keep, struct edit_version *version,
                         const struct dmi_span *span)
{
    pthread_mutex_lock(&lock);
    struct donor *d = *find(name, span->request_id);
    if (!d) {
        d = donor_new(version, span);
        d = hang(d, name, keep) ? d : NULL;
    }
    hold(d);
    pthread_mutex_unlock(&lock);
    return d;
}

/* Would the version do in the donor what its own edits do? Under the lock. */
static bool is_alike(struct donor *d, const struct edit_version *version)
{
    if (d->asked != version->number) {
        d->asked = version->number;
        d->asked_effect = edits_effect(version->uses, version->n, d->request, d->tags);
    }
    return d->asked_effect == d->effect;
}

struct donor *donors_find(const char *name, struct edit_version *version,
                          const struct dmi_span *span)
{
    pthread_mutex_lock(&lock);
    struct donor *d = *find(name, span->request_id);
    const struct name *of = d ? NULL : find_name(name);
    if (of && of->donors && !of->donors->beside)
        d = of->donors;
    d = d && is_alike(d, version) ? hold(d) : NULL;
    pthread_mutex_unlock(&lock);
    return d;
}

uint32_t donor_number(const struct donor *d)
{
    return d->number;
}

const char *donor_request(const struct donor *d)
{
    return d->request;
}

/* No launch uses its rows any more. */
static void drop_rows(struct in_flight *of)
{
    struct donor *d = (struct donor *)of;
    bank_drop(d->number);
    donor_free(d);
}

void donor_release(struct donor *d)
{
    if (d && atomic_sub_acq_rel(&d->refs, 1) == 1)
        in_flight_wait(&d->in_flight, drop_rows);
}

/* ------------------------------------------------------------------------- their end */

/* The table's hold of one that was forgotten goes, outside of the lock. */
static void release_all(struct donor *gone)
{
    while (gone) {
        struct donor *next = gone->next;
        gone->next = NULL;
        donor_release(gone);
        gone = next;
    }
}

void donors_request_end(const char *id)
{
    struct donor *gone = NULL;
    pthread_mutex_lock(&lock);
    for (struct name *n = book.names; n; n = n->next) {
        struct donor *d = *find(n->text, id);
        if (!d)
            continue;
        if (d->keep) {
            unhang(d);
            d->ended = true;
        } else {
            forget(d);
            d->next = gone;
            gone = d;
        }
    }
    pthread_mutex_unlock(&lock);
    release_all(gone);
}

/* ------------------------------------------------------------------------- asking */

bool donors_have(const char *name)
{
    pthread_mutex_lock(&lock);
    const struct name *n = find_name(name);
    bool have = n && n->donors;
    pthread_mutex_unlock(&lock);
    return have;
}

uint32_t donors_list(struct text *t, uint32_t most)
{
    uint32_t n_all = 0;
    pthread_mutex_lock(&lock);
    for (const struct name *n = book.names; n; n = n->next)
        for (const struct donor *d = n->donors; d; d = d->beside) {
            if (n_all++ >= most)
                continue;
            text_printf(t, "%s{\"name\": ", n_all > 1 ? ", " : "");
            text_json(t, n->text);
            text_printf(t, ", \"request\": ");
            text_json(t, d->request);
            text_printf(t, ", \"keep\": %s, \"ended\": %s}", d->keep ? "true" : "false",
                        d->ended ? "true" : "false");
        }
    pthread_mutex_unlock(&lock);
    return n_all > most ? n_all - most : 0;
}

uint32_t donors_drop(const char *name)
{
    struct donor *gone = NULL;
    uint32_t n_gone = 0;
    pthread_mutex_lock(&lock);
    struct name *n = find_name(name);
    for (; n && n->donors; n_gone++) {
        struct donor *d = n->donors;
        forget(d);
        d->next = gone;
        gone = d;
    }
    pthread_mutex_unlock(&lock);
    release_all(gone);
    return n_gone;
}

void donors_reset(void)
{
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    memset(&book, 0, sizeof book);
}
