/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/edit/edits.h"

#include "core/atomic.h"
#include "core/cleanup.h"
#include "core/log.h"
#include "preload/context/edit_region.h"
#include "preload/edit/accounts.h"
#include "preload/session/session.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* never held across a driver call */
static struct edit_version *in_force;                    /* held; under the lock */
static uint64_t next_number = 1;
static uint64_t places; /* a bit a place; atomic */

static_assert(SPEC_MAX_PLACES <= 64, "each has a bit");

/* ------------------------------------------------------------------------- versions */

static void version_free(struct edit_version *v)
{
    if (v->at)
        edit_region_free(v->at);
    edit_rows_deinit(&v->every);
    edit_table_deinit(&v->table);
    edits_free(v->edits);
    free(v);
}

struct edit_version *edits_hold(void)
{
    if (!session.spec->n_places)
        return NULL;
    pthread_mutex_lock(&lock);
    struct edit_version *v = in_force;
    if (v)
        atomic_add_relaxed(&v->refs, 1);
    pthread_mutex_unlock(&lock);
    return v;
}

void edits_release(struct edit_version *v)
{
    /* whoever is last sees what the others did with it */
    if (v && atomic_sub_acq_rel(&v->refs, 1) == 1)
        version_free(v);
}

/* Which rows are counted where. */
static uint32_t counter_of(void *arg, uint32_t edit, const struct dmi_span *span, int *miss)
{
    const struct edit_version *v = arg;
    return accounts_find(v->number, edit, span ? span->request_id : NULL, miss);
}

static uint64_t places_of(const struct edit_version *v)
{
    uint64_t found = 0;
    for (uint32_t s = 0; s < session.spec->n_sites; s++) {
        const struct spec_site *site = session_site(s);
        for (uint32_t i = 0; i < v->edits->n && site->action == SPEC_EDIT; i++)
            if (!strcmp(v->edits->list[i].site, site->about.name))
                found |= 1ull << site->write.place;
    }
    return found;
}

/* Takes over @edits. Return: NULL where there is no room, which @err says. */
static struct edit_version *version_new(struct err *err, struct edits *edits)
{
    struct edit_version *v = calloc(1, sizeof *v);
    if (!v) {
        edits_free(edits);
        err_set(err, -ENOMEM, "no memory");
        return NULL;
    }
    v->refs = 1;
    v->edits = edits;
    int r = edit_table_build(edits, session.spec, &v->table);
    if (r)
        err_set(err, r, "no memory for its table");
    else
        r = edit_region_place(err, v->table.bytes, v->table.n, &v->at);
    if (!r) {
        v->number = next_number++;
        struct edit_rows_ask ask = { .table = v->at, .counter = counter_of, .arg = v };
        r = edit_rows_build_every(edits, &ask, &v->every);
    }
    if (!r)
        return v;
    version_free(v);
    return NULL;
}

static void put_in_force(struct edit_version *v)
{
    pthread_mutex_lock(&lock);
    struct edit_version *before = in_force;
    in_force = v;
    pthread_mutex_unlock(&lock);
    atomic_store_relaxed(&places, places_of(v));
    atomic_add_acq_rel(&session.switches, 1); /* acquired by follow_switches() of graph/launch.c */
    edits_release(before);
}

bool edits_reach_place(uint32_t place)
{
    return atomic_load_relaxed(&places) >> place & 1;
}

/* ------------------------------------------------------------------------- steps */

int edits_step(const struct dmi_step *said, struct edit_step *out)
{
    *out = (struct edit_step){ .version = edits_hold() };
    if (!out->version)
        return 0;
    struct edit_rows_ask ask = { .table = out->version->at,
                                 .counter = counter_of,
                                 .arg = out->version };
    int r = edit_rows_build(out->version->edits, said, &ask, &out->rows);
    if (r)
        edits_step_deinit(out);
    return r;
}

void edits_step_deinit(struct edit_step *step)
{
    edit_rows_deinit(&step->rows);
    edits_release(step->version);
    *step = (struct edit_step){ 0 };
}

/* ------------------------------------------------------------------------- from the start */

static struct edits *unpack(const char *path, const void *data, size_t n)
{
    struct spec_errors errors = { 0 };
    struct edits *edits = NULL;
    int r = edits_unpack(path, data, n, session.spec, &errors, &edits);
    for (size_t i = 0; i < errors.n_lines; i++)
        log_line("%s", errors.lines[i]);
    if (r)
        log_line("%s: no edit is in force", path);
    spec_errors_deinit(&errors);
    return edits;
}

static struct edits *read_file(const char *path)
{
    _cleanup_(closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) || !S_ISREG(st.st_mode) || !st.st_size) {
        log_line("%s cannot be read: no edit is in force", path);
        return NULL;
    }
    void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (map == MAP_FAILED) {
        log_line("%s cannot be mapped: no edit is in force", path);
        return NULL;
    }
    struct edits *edits = unpack(path, map, (size_t)st.st_size);
    munmap(map, (size_t)st.st_size);
    return edits;
}

void edits_start(void)
{
    const char *path = getenv("DMI_EDITS");
    struct err err = { 0 };
    if (!path || !*path)
        return;
    if (edit_region_start(session.spec->edit_bytes)) {
        log_line("no memory for edits: none is in force");
        return;
    }
    struct edits *edits = read_file(path);
    if (!edits)
        return;
    uint32_t n = edits->n;
    struct edit_version *v = version_new(&err, edits);
    if (!v) {
        log_line("%s: %s: no edit is in force", path, err.msg);
        return;
    }
    put_in_force(v);
    log_line("%u %s in force, of %s", n, n == 1 ? "edit is" : "edits are", path);
}

void edits_reset(void)
{
    pthread_mutex_t unlocked = PTHREAD_MUTEX_INITIALIZER;
    lock = unlocked;
    in_force = NULL; /* the parent's */
    next_number = 1;
    places = 0;
    edit_region_reset();
    accounts_reset();
}
