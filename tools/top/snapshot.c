/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/top/snapshot.h"

#include "core/cleanup.h"
#include "core/clock.h"
#include "core/err.h"

#include <dmi/format.h>

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ------------------------------------------------------------------------- a file */

/* O_NONBLOCK: the open of a FIFO would wait for a writer. */
static int open_own(struct err *err, int dir, const char *path, const char *name, struct stat *st)
{
    _cleanup_(closep) int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT)
        return -ENOENT;
    if (fd < 0 && (errno == EACCES || errno == EPERM))
        return err_set(err, -errno, "%s/%s: only the owner of a run may look at it", path, name);
    if (fd < 0 && errno == ELOOP)
        return err_set(err, -ELOOP, "%s/%s: is a symbolic link", path, name);
    if (fd < 0 || fstat(fd, st))
        return err_set_errno(err, errno, "%s/%s: cannot be read", path, name);
    if (!S_ISREG(st->st_mode))
        return err_set(err, -EINVAL, "%s/%s: is no regular file", path, name);
    if (geteuid() && st->st_uid != geteuid())
        return err_set(err, -EACCES,
                       "%s/%s: belongs to another user, and only the owner of a run may look at it",
                       path, name);
    return steal_fd(&fd);
}

/* Return: bytes that were there, -errno. */
static ssize_t read_all(int fd, void *data, size_t n)
{
    size_t done = 0;
    while (done < n) {
        ssize_t r = pread(fd, (char *)data + done, n - done, (off_t)done);
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0)
            return -errno;
        if (!r)
            break;
        done += (size_t)r;
    }
    return (ssize_t)done;
}

int snapshot_load(struct err *err, int dir, const char *path, const char *name, size_t most,
                  void **data, size_t *n_bytes)
{
    struct stat st;
    _cleanup_(closep) int fd = open_own(err, dir, path, name, &st);
    if (fd < 0)
        return fd;
    if ((uint64_t)st.st_size > most)
        return err_set(err, -E2BIG, "%s/%s: has more bytes than such a file may have", path, name);
    _cleanup_(freep) void *all = malloc((size_t)st.st_size + 1);
    if (!all)
        return err_set(err, -ENOMEM, "no memory");
    ssize_t n = read_all(fd, all, (size_t)st.st_size);
    if (n < 0)
        return err_set_errno(err, (int)-n, "%s/%s: cannot be read", path, name);
    ((char *)all)[n] = 0;
    *data = steal_ptr(all);
    *n_bytes = (size_t)n;
    return 0;
}

/* ------------------------------------------------------------------------- counters */

/* What is wrong with it, NULL: nothing. */
static const char *counters_wrong(const struct dmi_counters *c, size_t n,
                                  const struct snapshot_of *of)
{
    if (n < sizeof *c || c->magic != DMI_COUNTERS_MAGIC)
        return "is no file of counters";
    if (c->version != DMI_COUNTERS_VERSION)
        return "is of another version";
    if (c->n_sites != of->n_sites || n != sizeof *c + (uint64_t)c->n_sites * sizeof c->sites[0])
        return "has another size than it says, or than its run's sites take";
    if (memcmp(c->run_uuid, of->uuid, sizeof of->uuid))
        return "is of another run";
    if (c->state != DMI_COUNTERS_RUNNING && c->state != DMI_COUNTERS_CLOSED)
        return "says neither that its run goes on nor that it is closed";
    return NULL;
}

static int take_counters(struct err *err, const struct snapshot_of *of, struct snapshot *s)
{
    void *data = NULL;
    size_t n;
    /* before the numbers: who closes the run in between is seen as closed by them */
    bool written = alive_is(of->dir, of->process);
    int r = snapshot_load(err, of->dir, of->path, "counters", DMI_MAX_JSON, &data, &n);
    if (r == -ENOENT)
        return err_set(err, r, "%s/counters: there is no such file", of->path);
    if (r)
        return r;
    s->counters = data;
    const char *wrong = counters_wrong(data, n, of);
    if (wrong)
        return err_set(err, -EBADMSG, "%s/counters: %s", of->path, wrong);
    s->state = s->counters->state == DMI_COUNTERS_CLOSED ? TOP_CLOSED
               : written                                 ? TOP_RUNNING
                                                         : TOP_KILLED;
    return 0;
}

/* ------------------------------------------------------------------------- live */

static const char *live_wrong(const struct dmi_live *l, size_t n, const struct snapshot_of *of)
{
    if (n < __builtin_offsetof(struct dmi_live, raw_bytes) || l->magic != DMI_LIVE_MAGIC)
        return "is no file of live numbers";
    if (l->version != DMI_LIVE_VERSION)
        return "is of another version";
    if (n != sizeof *l || l->n_bytes != sizeof *l || l->n_rings != DMI_LIVE_RINGS ||
        l->ring_bytes != sizeof l->rings[0] || l->n_requests != DMI_LIVE_REQUESTS ||
        l->request_bytes != sizeof l->requests[0])
        return "has another size than its tables take";
    if (memcmp(l->run_uuid, of->uuid, sizeof of->uuid))
        return "is of another run";
    for (uint32_t i = 0; i < DMI_LIVE_REQUESTS; i++)
        if (!(l->requests[i].sequence & 1) && l->requests[i].n_id > DMI_MAX_ID)
            return "has a request whose id is longer than ids are";
    return NULL;
}

static int load_live(struct err *err, const struct snapshot_of *of, struct dmi_live **out)
{
    void *data = NULL;
    size_t n;
    TRY(snapshot_load(err, of->dir, of->path, "live", DMI_MAX_JSON, &data, &n));
    *out = data;
    const char *wrong = live_wrong(data, n, of);
    return wrong ? err_set(err, -EBADMSG, "%s/live: %s", of->path, wrong) : 0;
}

/*
 * What follows something comes from the later reading, so that no more was released than reserved, and no more is in flight
 * than ever was.
 */
static void settle_rings(struct dmi_live *now, const struct dmi_live *after)
{
    for (uint32_t i = 0; i < DMI_LIVE_RINGS; i++) {
        struct dmi_live_ring *to = &now->rings[i];
        const struct dmi_live_ring *from = &after->rings[i];
        to->floor_bytes = from->floor_bytes;
        to->tail_bytes = from->tail_bytes;
        to->tail_slots = from->tail_slots;
        to->most_bytes = from->most_bytes;
        to->most_slots = from->most_slots;
        to->ended = from->ended;
    }
}

/*
 * Three readings: an entry of the second is of one moment where the first and the third have the same even sequence. No order
 * in which one reading copies its bytes has to be known for that.
 */
static int take_live(struct err *err, const struct snapshot_of *of, struct snapshot *s)
{
    _cleanup_(freep) struct dmi_live *before = NULL;
    _cleanup_(freep) struct dmi_live *now = NULL;
    _cleanup_(freep) struct dmi_live *after = NULL;
    _cleanup_(freep) bool *whole = calloc(DMI_LIVE_REQUESTS, sizeof *whole);
    int r = whole ? load_live(err, of, &before) : err_set(err, -ENOMEM, "no memory");
    if (!r)
        r = load_live(err, of, &now);
    if (!r)
        r = load_live(err, of, &after);
    if (r)
        return r;
    for (uint32_t i = 0; i < DMI_LIVE_REQUESTS; i++) {
        uint64_t sequence = before->requests[i].sequence;
        whole[i] = !(sequence & 1) && after->requests[i].sequence == sequence &&
                   now->requests[i].n_id <= DMI_MAX_ID;
    }
    settle_rings(now, after);
    s->live = steal_ptr(now);
    s->whole = steal_ptr(whole);
    return 0;
}

/* ------------------------------------------------------------------------- edits */

static const char *edits_wrong(const struct dmi_edit_accounts *e, size_t n,
                               const struct snapshot_of *of)
{
    if (n < sizeof *e || e->magic != DMI_EDIT_ACCOUNTS_MAGIC)
        return "is no file of edits' accounts";
    if (e->version != DMI_EDIT_ACCOUNTS_VERSION)
        return "is of another version";
    if (n != sizeof *e + (uint64_t)e->n * sizeof e->accounts[0])
        return "has another size than its accounts take";
    if (memcmp(e->run_uuid, of->uuid, sizeof of->uuid))
        return "is of another run";
    for (uint32_t i = 0; i < e->n; i++)
        if (!memchr(e->accounts[i].edit, 0, sizeof e->accounts[i].edit))
            return "has an edit whose name does not end";
    return NULL;
}

/* Return: as load_live(). */
static int load_edits(struct err *err, const struct snapshot_of *of, struct dmi_edit_accounts **out)
{
    _cleanup_(freep) void *data = NULL;
    size_t n;
    TRY(snapshot_load(err, of->dir, of->path, "edits", DMI_MAX_JSON, &data, &n));
    const char *wrong = edits_wrong(data, n, of);
    if (wrong)
        return err_set(err, -EBADMSG, "%s/edits: %s", of->path, wrong);
    *out = steal_ptr(data);
    return 0;
}

/* Two readings: what is due is counted first, so it comes from the later one. */
static void take_edits(struct err *err, const struct snapshot_of *of, struct snapshot *s)
{
    _cleanup_(freep) struct dmi_edit_accounts *after = NULL;
    if (load_edits(err, of, &s->edits) || load_edits(err, of, &after))
        return;
    for (uint32_t i = 0; i < s->edits->n && i < after->n; i++) {
        struct dmi_edit_account *to = &s->edits->accounts[i];
        const struct dmi_edit_account *from = &after->accounts[i];
        if (to->uid == from->uid && to->state == from->state &&
            !memcmp(to->request, from->request, sizeof to->request))
            to->due = from->due;
    }
}

/* ------------------------------------------------------------------------- all of it */

int snapshot_take(struct err *err, struct err *live_err, const struct snapshot_of *of,
                  struct snapshot *out)
{
    struct snapshot s = { 0 };
    int r = take_counters(err, of, &s);
    s.mono_ns = clock_mono_ns();
    if (!r && s.state != TOP_CLOSED)
        take_live(live_err, of,
                  &s); /* what is wrong with it stands there; nothing: it is missing */
    if (!r)
        take_edits(live_err->code ? &(struct err){ 0 } : live_err, of, &s);
    if (r)
        snapshot_deinit(&s);
    *out = s;
    return r;
}

void snapshot_deinit(struct snapshot *s)
{
    free(s->counters);
    free(s->live);
    free(s->whole);
    free(s->edits);
    *s = (struct snapshot){ 0 };
}
