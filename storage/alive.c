/* SPDX-License-Identifier: Apache-2.0 */
#include "storage/alive.h"

#include "core/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum verdict { DEAD, LIVES, UNKNOWN };

/* ------------------------------------------------------------------------- the lock */

static bool lock_open_file(int fd)
{
    struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
    return !fcntl(fd, F_OFD_SETLK, &lock);
}

/* Also finds a lock of this very process, and the POSIX lock of older writers. UNKNOWN: there are no locks here. */
static enum verdict lock_of(int fd)
{
    struct flock lock = { .l_type = F_RDLCK, .l_whence = SEEK_SET };
    if (fcntl(fd, F_GETLK, &lock))
        return UNKNOWN;
    return lock.l_type == F_WRLCK ? LIVES : DEAD;
}

/*
 * A locked open file that only a mapping refers to: no descriptor of it can be closed or inherited, and no fork copies the
 * mapping. It ends with the process's memory, at its end or when it executes another program.
 */
static void *map_locked(const char *path)
{
    _cleanup_(closep) int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    void *page = fd < 0 ? MAP_FAILED : mmap(NULL, 1, PROT_NONE, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED)
        return NULL;
    if (!madvise(page, 1, MADV_DONTFORK) && lock_open_file(fd))
        return page;
    munmap(page, 1);
    return NULL;
}

/* ------------------------------------------------------------------------- the process */

static bool read_line(const char *path, char *out, size_t n_out)
{
    _cleanup_(closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, out, n_out - 1);
    out[n > 0 ? n : 0] = 0;
    out[strcspn(out, "\n")] = 0;
    return n > 0;
}

#define SKIP_8 " %*s %*s %*s %*s %*s %*s %*s %*s"

/* Return: the start in ticks, 0 where it has ended and only waits for its parent; -1: it cannot be read. */
static int64_t start_of(const char *stat_path)
{
    char line[1024], state;
    uint64_t n_threads, start;
    if (!read_line(stat_path, line, sizeof line))
        return -1;
    const char *at = strrchr(line, ')'); /* the name before it may hold anything */
    if (!at || sscanf(at, ") %c" SKIP_8 SKIP_8 " %" SCNu64 " %*s %" SCNu64, &state, &n_threads,
                      &start) != 3)
        return -1;
    /* a first thread that has ended leaves the others */
    return strchr("ZXx", state) && n_threads <= 1 ? 0 : (int64_t)start;
}

static void read_place(struct alive_process *p)
{
    static const char *const names[] = { "pid", "time" };
    size_t at = 0;
    read_line("/proc/sys/kernel/random/boot_id", p->boot_id, sizeof p->boot_id);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[32], found[32];
        snprintf(path, sizeof path, "/proc/self/ns/%s", names[i]);
        ssize_t n = readlink(path, found, sizeof found);
        if (n > 0 && (size_t)n < sizeof p->namespaces - at - 1)
            at += (size_t)snprintf(p->namespaces + at, sizeof p->namespaces - at, "%s%.*s",
                                   at ? " " : "", (int)n, found);
    }
}

static enum verdict process_of(const struct alive_process *said, const struct stat *st)
{
    struct alive_process here = { 0 };
    char path[48];
    if (said->inode != st->st_ino)
        return DEAD; /* a copy: it never grows */
    read_place(&here);
    if (strcmp(here.boot_id, said->boot_id) || strcmp(here.namespaces, said->namespaces))
        return UNKNOWN;
    snprintf(path, sizeof path, "/proc/%" PRIu64 "/stat", said->pid);
    int64_t start = start_of(path);
    if (start < 0) /* mounts of /proc can hide processes of others */
        return kill((pid_t)said->pid, 0) && errno == ESRCH ? DEAD : LIVES;
    return (uint64_t)start == said->start_ticks ? LIVES : DEAD;
}

/* ------------------------------------------------------------------------- both sides */

void alive_hold(struct alive *alive, const char *path, int fd)
{
    struct stat st;
    *alive = (struct alive){ .page = map_locked(path) };
    if (alive->page && lock_of(fd) == LIVES)
        return;
    /* There are no locks, or (overlayfs) a mapping refers to another open file than the one that was locked. */
    alive_release(alive);
    lock_open_file(fd); /* for readers who cannot look the process up */
    int64_t start = start_of("/proc/self/stat");
    if (start <= 0 || fstat(fd, &st))
        return;
    alive->process =
        (struct alive_process){ (uint64_t)getpid(), (uint64_t)start, st.st_ino, "", "" };
    read_place(&alive->process);
}

void alive_release(struct alive *alive)
{
    if (alive->page)
        munmap(alive->page, 1);
    alive->page = NULL;
}

bool alive_is(int dir, const struct alive_process *process)
{
    /* O_NONBLOCK: the open of a FIFO would wait for a writer */
    _cleanup_(closep) int fd =
        openat(dir, "counters", O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    struct stat st;
    if (fd < 0 || fstat(fd, &st))
        return false;
    enum verdict verdict = process ? process_of(process, &st) : UNKNOWN;
    if (verdict == UNKNOWN)
        verdict = lock_of(fd);
    /* Nothing can tell, and a writer that has no lock says so: what it may still write must not be deleted. */
    return verdict == LIVES || (verdict == UNKNOWN && process);
}
