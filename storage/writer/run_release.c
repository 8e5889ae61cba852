/* SPDX-License-Identifier: Apache-2.0 */
/* Which closed segments are beyond what is to be kept, and how they are deleted. */
#include "core/atomic.h"
#include "core/clock.h"
#include "storage/folder.h"
#include "storage/names.h"
#include "storage/writer/run_private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const struct manifest_segment *oldest_kept(const struct run *run, size_t *number)
{
    const struct manifest *m = &run->manifest;
    for (size_t i = m->n_released; i < m->n_segments; i++)
        if (!m->segments[i].released) {
            *number = i;
            return m->segments[i].closed ? &m->segments[i] : NULL;
        }
    return NULL;
}

/* Bytes of all segments, the open one too. */
static uint64_t kept_bytes(const struct run *run)
{
    const struct manifest *m = &run->manifest;
    uint64_t n = run->segment.closed ? 0 : run->segment.end;
    for (size_t i = m->n_released; i < m->n_segments; i++)
        n += m->segments[i].released ? 0 : m->segments[i].n_bytes;
    return n;
}

/* What somebody has taken elsewhere: the number of the first segment that is still wanted. */
static size_t consumed(const struct run *run)
{
    char text[16];
    _cleanup_(freep) char *path = folder_file(run->path, RUN_CONSUMED);
    _cleanup_(closep) int fd =
        path ? open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK) : -1;
    ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
    if (n <= 0)
        return 0;
    text[n] = 0;
    return strtoul(text, NULL, 10);
}

static bool is_beyond(const struct run *run, const struct manifest_segment *s)
{
    return (run->keep_bytes && kept_bytes(run) > run->keep_bytes) ||
           (run->keep_ns && clock_mono_ns() - s->closed_ns >= run->keep_ns);
}

static void count_released(struct run *run, const struct manifest_segment *s)
{
    for (size_t i = 0; i < s->n_tallies; i++) {
        struct dmi_tally *to = &run->counters.map->sites[s->tallies[i].site].released;
        atomic_add_relaxed(&to->records, s->tallies[i].records);
        atomic_add_relaxed(&to->rows, s->tallies[i].rows);
        atomic_add_relaxed(&to->bytes, s->tallies[i].bytes);
    }
}

/*
 * The manifest first, in one rename: from then on the segment is released, whether its file is there or not, and the
 * manifest has the sums. The counters follow.
 */
static int release(struct run *run, size_t number)
{
    char name[32];
    snprintf(name, sizeof name, DMI_SEGMENT_NAME, (unsigned)number);
    _cleanup_(freep) char *path = folder_file(run->path, name);
    if (!path || manifest_release(&run->manifest, number, run->counters.map->n_sites))
        return -ENOMEM;
    int r = run_write_manifest(run, run_syncs(run));
    if (r) {
        manifest_take_back(&run->manifest, number);
        return r;
    }
    count_released(run, &run->manifest.segments[number]);
    manifest_forget_tallies(&run->manifest, number);
    if (unlink(path) && errno != ENOENT)
        manifest_add_problem(&run->manifest, NULL, "not_deleted",
                             "a segment that is released could not be deleted");
    return 0;
}

void run_release(struct run *run)
{
    size_t number, wanted = consumed(run);
    const struct manifest_segment *s;
    while ((s = oldest_kept(run, &number)) && (number < wanted || is_beyond(run, s)) &&
           !release(run, number))
        ;
}
