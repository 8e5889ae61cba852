/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/nvtx/names.h"

#include "core/any.h"
#include "core/atomic.h"
#include "core/locked.h"
#include "policy/nearest.h"
#include "policy/range_name.h"
#include "preload/session/session.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define N_BUCKETS 4096u
#define MAX_IDLE                                                                                   \
    4096u /* names that concern nobody, kept so that they are not matched again, and for messages */
#define MAX_NAMES 65536u /* the others: a hostile program may number its ranges without end */
#define MAX_SHOWN 64u    /* of a name in a message */

static const struct spec *in_use;
static struct nvtx_name *buckets[N_BUCKETS]; /* released by add(), acquired by nvtx_name_of() */
static uint32_t n_idle, n_names;             /* under the lock */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static const struct nvtx_name nobody = { .text = "", .kind = -1, .layer = -1 };

void nvtx_names_use(const struct spec *spec)
{
    atomic_store_release(&in_use, spec); /* to nvtx_name_of() */
}

bool nvtx_names_wanted(void)
{
    return atomic_load_relaxed(&in_use) != NULL;
}

static struct nvtx_name *find(struct nvtx_name *list, uint64_t hash, const char *text)
{
    while (list && (list->hash != hash || strcmp(list->text, text)))
        list = list->next;
    return list;
}

/* The name and its text in one allocation. */
static struct nvtx_name *create(const char *text, const struct spec_range_match *match)
{
    size_t n_sites = match->n_sites * sizeof match->sites[0], n_text = strlen(text) + 1;
    struct nvtx_name *name = malloc(sizeof *name + n_sites + n_text);
    if (!name)
        return NULL;
    *name = (struct nvtx_name){ .text = (char *)name->sites + n_sites,
                                .layer = range_name_layer(text),
                                .kind = match->kind,
                                .n_sites = match->n_sites };
    memcpy(name->sites, match->sites, n_sites);
    memcpy((char *)name->sites + n_sites, text, n_text);
    return name;
}

/* Is there room for one more name? Under the lock. */
static bool has_room(bool idle)
{
    uint32_t *n = idle ? &n_idle : &n_names;
    bool room = *n < (idle ? MAX_IDLE : MAX_NAMES);
    *n += room;
    return room;
}

/* Under the lock. */
static const struct nvtx_name *add(struct nvtx_name **bucket, uint64_t hash, const char *text,
                                   const struct spec_range_match *match)
{
    struct nvtx_name *name = find(*bucket, hash, text);
    if (name || !has_room(!match->n_sites && match->kind < 0) || !(name = create(text, match)))
        return name;
    name->hash = hash;
    name->next = *bucket;
    atomic_store_release(bucket, name); /* to nvtx_name_of() */
    return name;
}

/* A range that is not seen would leave its kernels to those around it. */
static void give_up(const struct spec_range_match *match)
{
    static const char why[] = "there is no room for the name of one more NVTX range";
    struct session_call call;
    bool armed = session_enter(&call);
    if (armed && match->kind >= 0)
        session_give_up_all(why);
    for (uint32_t i = 0; armed && i < match->n_sites; i++)
        session_give_up(match->sites[i], "%s: switched off", why);
    session_leave(&call);
}

const struct nvtx_name *nvtx_name_of(const char *text, size_t n)
{
    char parsed[RANGE_NAME_MAX];
    struct spec_range_match match;
    const struct spec *spec = atomic_load_acquire(&in_use); /* of nvtx_names_use() */
    if (!spec)
        return &nobody;
    uint64_t hash = XXH3_64bits(parsed, range_name_parse(text, n, parsed));
    struct nvtx_name **bucket = &buckets[hash % N_BUCKETS];
    const struct nvtx_name *name = find(atomic_load_acquire(bucket), hash, parsed); /* of add() */
    if (name)
        return name;
    spec_match_range(spec, parsed, &match);
    UNDER(&lock, name = add(bucket, hash, parsed, &match));
    if (!name)
        give_up(&match);
    return name ? name : &nobody;
}

/* ------------------------------------------------------------------------- messages */

/* Names that were seen, as candidates for "did you mean". */
struct seen_names {
    const char *texts[MAX_IDLE];
    uint32_t n;
    const char *matching; /* one that the site's pattern matches */
};

static bool has_site(const struct nvtx_name *name, uint32_t site)
{
    return ANY(i, name->n_sites, name->sites[i] == site);
}

static void look_around(struct seen_names *seen, uint32_t site)
{
    for (uint32_t b = 0; b < N_BUCKETS; b++)
        for (struct nvtx_name *name = atomic_load_acquire(&buckets[b]); name; /* of add() */
             name = name->next) {
            if (seen->n < MAX_IDLE)
                seen->texts[seen->n++] = name->text;
            if (has_site(name, site))
                seen->matching = name->text;
        }
}

/* What of the pattern is text: of '*.layers.*.mlp' ".layers..mlp". */
static size_t plain_part(const char *pattern, char *buffer, size_t n_buffer)
{
    size_t n = 0;
    for (; *pattern && n < n_buffer; pattern++)
        if (!strchr("*?[]^$/\\+|(){}", *pattern))
            buffer[n++] = *pattern;
    return n;
}

void nvtx_names_why(const struct spec *spec, uint32_t site, char *buffer, size_t n_buffer)
{
    const char *pattern = spec->sites[site].nvtx.pattern;
    struct seen_names *seen = calloc(1, sizeof *seen);
    char plain[128], hint[160] = "";
    if (seen)
        look_around(seen, site);
    if (!seen || !seen->n) {
        snprintf(buffer, n_buffer,
                 "no range matched the nvtx pattern %s: the program has opened none", pattern);
    } else if (seen->matching) {
        const char *wanted = spec->sites[site].about.kernel;
        snprintf(buffer, n_buffer,
                 "the range %.*s was open, but %s kernels were launched in it that match %s",
                 (int)MAX_SHOWN, seen->matching, spec->sites[site].nvtx.n ? "too few" : "no",
                 wanted ? wanted : "whatever they are called");
    } else {
        nearest_hint(plain, plain_part(pattern, plain, sizeof plain), seen->texts, seen->n, hint,
                     sizeof hint);
        snprintf(buffer, n_buffer,
                 "no range matched the nvtx pattern %s; %u others were seen, as %.*s%s", pattern,
                 seen->n, (int)MAX_SHOWN, seen->texts[0], hint);
    }
    free(seen);
}

void nvtx_names_reset(void)
{
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    in_use = NULL; /* the child may have another spec */
    n_idle = n_names = 0;
    memset(buckets, 0, sizeof buckets);
}
