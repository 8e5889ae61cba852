/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/edit/accounts.h"

#include "core/atomic.h"
#include "core/cleanup.h"
#include "preload/context/edit_region.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define NONE    UINT32_MAX
#define N_HEADS 4096u

/* Of one edit in one request, or of all requests for which there was no account. */
struct account {
    char *request;    /* NULL: nobody knows whose rows they are */
    uint64_t version; /* 0: the account is free */
    uint32_t edit;
    bool rest;     /* of the requests without an account */
    uint32_t next; /* of those with the same hash */
    int64_t due;   /* atomic, as @missed */
    int64_t missed[EDIT_MISS_COUNT];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* never held across a driver call */
static struct account *accounts;                         /* EDIT_COUNTERS; NULL: none yet */
static uint32_t n_accounts, *heads; /* by hash; 0: none, else one more than the account */

static uint32_t hash_of(uint64_t version, uint32_t edit, const char *request)
{
    uint64_t seed = version * EDITS_MAX + edit;
    return (uint32_t)(XXH3_64bits_withSeed(request ? request : "", request ? strlen(request) : 0,
                                           seed) %
                      N_HEADS);
}

static bool is_it(const struct account *a, const struct account *wanted)
{
    return a->version == wanted->version && a->edit == wanted->edit && a->rest == wanted->rest &&
           !a->request == !wanted->request && (!a->request || !strcmp(a->request, wanted->request));
}

/* Under the lock. Return: NONE: there is none left, or no memory. */
static uint32_t find(const struct account *wanted)
{
    if (!accounts)
        accounts = calloc(EDIT_COUNTERS, sizeof *accounts);
    if (!heads)
        heads = calloc(N_HEADS, sizeof *heads);
    if (!accounts || !heads)
        return NONE;
    uint32_t hash = hash_of(wanted->version, wanted->edit, wanted->request);
    for (uint32_t i = heads[hash]; i; i = accounts[i - 1].next)
        if (is_it(&accounts[i - 1], wanted))
            return i - 1;
    /* the last ones are for what finds no other */
    if (n_accounts == EDIT_COUNTERS || (!wanted->rest && n_accounts >= EDIT_COUNTERS - EDITS_MAX))
        return NONE;
    struct account *a = &accounts[n_accounts];
    *a = *wanted;
    a->request = wanted->request ? strdup(wanted->request) : NULL;
    if (wanted->request && !a->request)
        return NONE;
    a->next = heads[hash];
    heads[hash] = ++n_accounts;
    return n_accounts - 1;
}

uint32_t accounts_find(uint64_t version, uint32_t edit, const char *request, int *miss)
{
    struct account wanted = { .request = (char *)request, .version = version, .edit = edit };
    pthread_mutex_lock(&lock);
    uint32_t found = find(&wanted);
    if (found == NONE) {
        *miss = EDIT_MISS_NO_ROOM;
        wanted.rest = true;
        wanted.request = NULL;
        found = find(&wanted);
    }
    pthread_mutex_unlock(&lock);
    return found;
}

void accounts_due(uint32_t account, int64_t n)
{
    if (account != NONE)
        atomic_add_relaxed(&accounts[account].due, n);
}

void accounts_missed(uint32_t account, enum edit_miss why, int64_t n)
{
    if (account != NONE)
        atomic_add_relaxed(&accounts[account].missed[why], n);
}

void accounts_reset(void)
{
    pthread_mutex_t unlocked = PTHREAD_MUTEX_INITIALIZER;
    lock = unlocked;
    accounts = NULL;
    heads = NULL;
    n_accounts = 0;
}
