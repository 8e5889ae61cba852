/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/request_table.h"

#include <stdlib.h>
#include <string.h>

#define N_HEADS 4096u /* a power of two */

static struct tabled_request **head_of(struct request_table *t, uint64_t hash)
{
    return &t->heads[hash & (N_HEADS - 1)];
}

/* Where the pointer to the entry stands, or to nothing at its list's end. */
static struct tabled_request **place_of(struct request_table *t, const char *id, uint64_t hash)
{
    struct tabled_request **at = head_of(t, hash);
    while (*at && ((*at)->hash != hash || strcmp((*at)->id, id) != 0))
        at = &(*at)->next;
    return at;
}

static void remove_at(struct request_table *t, struct tabled_request **at)
{
    struct tabled_request *gone = *at;
    *at = gone->next;
    free(gone);
    t->n--;
}

static void forget_before(struct request_table *t, uint64_t seen)
{
    for (uint32_t i = 0; i < N_HEADS; i++)
        for (struct tabled_request **at = &t->heads[i]; *at;)
            if ((*at)->seen < seen)
                remove_at(t, at);
            else
                at = &(*at)->next;
}

/* Forgets what was not seen for longest, at least a quarter of all where the step under way has fewer. */
static void forget(struct request_table *t, uint64_t now)
{
    for (uint64_t age = now; t->n > REQUEST_TABLE_MAX / 4 * 3; age /= 2) {
        forget_before(t, now - age);
        if (!age)
            return;
    }
}

static struct tabled_request *add(struct request_table *t, struct tabled_request **at,
                                  const char *id, uint64_t hash)
{
    size_t n = strlen(id) + 1;
    struct tabled_request *r = calloc(1, sizeof *r + n);
    if (!r)
        return NULL;
    memcpy(r->id, id, n);
    r->hash = hash;
    *at = r;
    t->n++;
    return r;
}

struct tabled_request *request_table_find(struct request_table *t, const char *id, uint64_t now)
{
    if (!t->heads)
        t->heads = calloc(N_HEADS, sizeof(struct tabled_request *));
    if (!t->heads)
        return NULL;
    uint64_t hash = overload_hash(id);
    struct tabled_request **at = place_of(t, id, hash);
    if (!*at && t->n >= REQUEST_TABLE_MAX) {
        forget(t, now);
        at = place_of(t, id, hash);
    }
    struct tabled_request *r = *at ? *at : add(t, at, id, hash);
    if (r)
        r->seen = now;
    return r;
}

void request_table_remove(struct request_table *t, const char *id)
{
    struct tabled_request **at = t->heads ? place_of(t, id, overload_hash(id)) : NULL;
    if (at && *at)
        remove_at(t, at);
}

void request_table_deinit(struct request_table *t)
{
    if (t->heads)
        forget_before(t, UINT64_MAX);
    free(t->heads);
    *t = (struct request_table){ 0 };
}
