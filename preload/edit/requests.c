/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/edit/requests.h"

#include "policy/tree.h"
#include "preload/edit/version.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define N_HEADS 1024u
#define MAX     65536u /* further ones have the version in force */

struct request {
    struct request *next;
    struct edit_version *version; /* held */
    uint64_t hash;
    bool last;                      /* its last step has begun: it is one of last_ones */
    struct request *before, *after; /* among them */
    uint64_t sequence;              /* of that step */
    char id[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* never held across a driver call */
static struct request *heads[N_HEADS];
static struct request *last_ones;
static uint32_t n_requests;

/* Where the request hangs, or would. Under the lock. */
static struct request **find(const char *id, uint64_t hash)
{
    struct request **at = &heads[hash % N_HEADS];
    while (*at && ((*at)->hash != hash || strcmp((*at)->id, id)))
        at = &(*at)->next;
    return at;
}

static struct request *request_new(const char *id, uint64_t hash, struct edit_version *version)
{
    size_t n = strlen(id) + 1;
    struct request *r = n_requests < MAX ? calloc(1, sizeof *r + n) : NULL;
    if (!r)
        return NULL;
    r->hash = hash;
    r->version = version;
    memcpy(r->id, id, n);
    version_use(version);
    n_requests++;
    return r;
}

struct edit_version *requests_version(const char *id, struct edit_version *now)
{
    uint64_t hash = XXH3_64bits(id, strlen(id));
    pthread_mutex_lock(&lock);
    struct request **at = find(id, hash);
    if (!*at)
        *at = request_new(id, hash, now);
    struct edit_version *v = *at ? (*at)->version : now;
    version_use(v);
    pthread_mutex_unlock(&lock);
    return v;
}

static void unlist(struct request *r)
{
    *(r->before ? &r->before->after : &last_ones) = r->after;
    if (r->after)
        r->after->before = r->before;
}

struct edit_version *requests_forget(const char *id)
{
    struct edit_version *v = NULL;
    pthread_mutex_lock(&lock);
    struct request **at = find(id, XXH3_64bits(id, strlen(id))), *r = *at;
    if (r) {
        *at = r->next;
        v = r->version;
        n_requests--;
        if (r->last)
            unlist(r);
        free(r);
    }
    pthread_mutex_unlock(&lock);
    return v;
}

void requests_last(const char *id, uint64_t sequence)
{
    pthread_mutex_lock(&lock);
    struct request *r = *find(id, XXH3_64bits(id, strlen(id)));
    if (r && !r->last) {
        r->last = true;
        r->sequence = sequence;
        r->after = last_ones;
        if (r->after)
            r->after->before = r;
        last_ones = r;
    }
    pthread_mutex_unlock(&lock);
}

/* Some request whose last step is over. Return: NULL: there is none; else free() it. */
static char *take_last(bool (*is_over)(const void *arg, uint64_t sequence), const void *arg)
{
    pthread_mutex_lock(&lock);
    const struct request *r = last_ones;
    while (r && !is_over(arg, r->sequence))
        r = r->after;
    char *id = r ? strdup(r->id) : NULL;
    pthread_mutex_unlock(&lock);
    return id;
}

void requests_end_last(bool (*is_over)(const void *arg, uint64_t sequence), const void *arg,
                       void (*end)(const char *id))
{
    for (char *id; (id = take_last(is_over, arg));) {
        end(id);
        free(id);
    }
}

bool requests_any(bool (*wants)(const struct edit_version *version, uint32_t site), uint32_t site)
{
    bool any = false;
    pthread_mutex_lock(&lock);
    for (uint32_t h = 0; h < N_HEADS && !any; h++)
        for (struct request *r = heads[h]; r && !any; r = r->next)
            any = wants(r->version, site);
    pthread_mutex_unlock(&lock);
    return any;
}

bool requests_all_have(const struct edit_version *version)
{
    bool all = true;
    pthread_mutex_lock(&lock);
    for (uint32_t h = 0; h < N_HEADS && all; h++)
        for (struct request *r = heads[h]; r && all; r = r->next)
            all = r->version == version;
    pthread_mutex_unlock(&lock);
    return all;
}

bool requests_have_salt(const char *tags, uint64_t salt)
{
    char wanted[32];
    struct tree tree = { 0 };
    struct tree_error error;
    bool has = false;
    snprintf(wanted, sizeof wanted, EDIT_SALT_FORMAT, salt);
    if (!tags || tree_parse(tags, strlen(tags), &tree, &error))
        tree.root = NULL;
    for (size_t i = 0; tree.root && tree.root->kind == TREE_MAP && i + 1 < tree.root->n_items;
         i += 2) {
        const struct tree_node *key = tree.root->items[i], *value = tree.root->items[i + 1];
        if (key->kind == TREE_SCALAR && !strcmp(key->text, "cache_salt") &&
            value->kind == TREE_SCALAR)
            has = has || strstr(value->text, wanted);
    }
    tree_deinit(&tree);
    return has;
}

void requests_reset(void)
{
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    memset(heads, 0, sizeof heads);
    last_ones = NULL;
    n_requests = 0;
}
