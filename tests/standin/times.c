/* SPDX-License-Identifier: Apache-2.0 */
/*
 * times.c - DMI_STANDIN_TIMES=FILE: how long operations take by a model, so that figures do not depend on the machine's load
 *
 * A line each, words with spaces between; what follows a # is a comment:
 *
 *     kernel PATTERN NS      kernels with such a name, as *gemm*; the first line that matches counts
 *     copy NS BYTES          copies: NS, and one for each BYTES bytes a nanosecond
 *     fill NS BYTES          the same of fills
 *     device N SCALE         all that device N runs takes SCALE times as long
 *     from NS SCALE          so does what begins NS or more after the first operation that has a time; the last such line counts
 *     noise SEED PERCENT     each time is up to so much shorter or longer, by the seed and the operation's number
 *
 * An operation begins where it was queued or where those before it end, whichever comes later, and is done no earlier than
 * its end. An operation that no line speaks of takes as long as executing it does.
 */
#include "times.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MAX_LINES = 256, MAX_WORDS = 4 };

struct by_bytes {
    bool given;
    double ns, bytes;
};

static struct {
    bool given;
    struct {
        char *pattern;
        double ns;
    } kernels[MAX_LINES];
    unsigned n_kernels;
    struct by_bytes copy, fill;
    double devices[MAX_DEVICES];
    struct {
        double ns, scale;
    } from[MAX_LINES];
    unsigned n_from;
    uint64_t seed;
    double noise;
    uint64_t real_ns;          /* CLOCK_REALTIME less clock_ns() */
    _Atomic uint64_t first_ns; /* when the first operation with a time began; 0: none did */
} times;

bool times_given(void)
{
    return times.given;
}

/* ---- reading ---- */

/* Handlers of exit() would call the driver, whose configuration is being read. */
static _Noreturn void refuse(const char *path, unsigned line, const char *cause)
{
    fprintf(stderr, "standin: %s:%u: %s\n", path, line, cause);
    fflush(stderr);
    syscall(SYS_exit_group, 2);
    abort();
}

/* Return: whether @word is a number that is at least @least. */
static bool number(const char *word, double least, double *value)
{
    char *end;

    *value = strtod(word, &end);
    return end != word && !*end && *value >= least && *value < 1e18;
}

static bool add_kernel(char *const *words)
{
    if (times.n_kernels == MAX_LINES || !number(words[2], 0, &times.kernels[times.n_kernels].ns))
        return false;
    times.kernels[times.n_kernels++].pattern = strdup(words[1]);
    return true;
}

static bool set_bytes(struct by_bytes *to, char *const *words)
{
    to->given = number(words[1], 0, &to->ns) && number(words[2], 1e-9, &to->bytes);
    return to->given;
}

static bool set_device(char *const *words)
{
    double device;

    return number(words[1], 0, &device) && device < MAX_DEVICES &&
           number(words[2], 0, &times.devices[(int)device]);
}

static bool add_from(char *const *words)
{
    unsigned n = times.n_from;

    if (n == MAX_LINES || !number(words[1], 0, &times.from[n].ns) ||
        !number(words[2], 0, &times.from[n].scale))
        return false;
    times.n_from++;
    return true;
}

static bool set_noise(char *const *words)
{
    double seed;
    bool fits =
        number(words[1], 0, &seed) && number(words[2], 0, &times.noise) && times.noise <= 100;

    times.seed = fits ? (uint64_t)seed : 0;
    return fits;
}

/* Three words. Return: whether they are a line. */
static bool take_line(char *const *words)
{
    if (!strcmp(words[0], "kernel"))
        return add_kernel(words);
    if (!strcmp(words[0], "copy"))
        return set_bytes(&times.copy, words);
    if (!strcmp(words[0], "fill"))
        return set_bytes(&times.fill, words);
    if (!strcmp(words[0], "device"))
        return set_device(words);
    if (!strcmp(words[0], "from"))
        return add_from(words);
    return !strcmp(words[0], "noise") && set_noise(words);
}

/* Return: how many words the line has, MAX_WORDS for more. */
static unsigned split(char *line, char **words)
{
    unsigned n = 0;
    char *rest = NULL;

    line[strcspn(line, "#")] = 0;
    for (char *word = strtok_r(line, " \t\r\n", &rest); word && n < MAX_WORDS;
         word = strtok_r(NULL, " \t\r\n", &rest))
        words[n++] = word;
    return n;
}

void times_read(const char *path)
{
    char line[1024];
    FILE *file = path && *path ? fopen(path, "re") : NULL;

    if (!path || !*path)
        return;
    if (!file)
        refuse(path, 0, strerror(errno));
    for (int i = 0; i < MAX_DEVICES; i++)
        times.devices[i] = 1;
    for (unsigned i = 1; fgets(line, sizeof(line), file); i++) {
        char *words[MAX_WORDS];
        unsigned n = split(line, words);

        if (n && (n != 3 || !take_line(words)))
            refuse(path, i,
                   "expected kernel PATTERN NS, copy NS BYTES, fill NS BYTES, device N SCALE, "
                   "from NS SCALE or noise SEED PERCENT");
    }
    fclose(file);
    times.real_ns = activity_clock() - clock_ns();
    times.given = true;
}

uint64_t times_real(uint64_t ns)
{
    return times.real_ns + ns;
}

/* ---- what it says ---- */

static bool of_kernel(const char *name, double *ns)
{
    for (unsigned i = 0; i < times.n_kernels; i++) {
        if (fnmatch(times.kernels[i].pattern, name, 0))
            continue;
        *ns = times.kernels[i].ns;
        return true;
    }
    return false;
}

static bool of_bytes(const struct by_bytes *by, uint64_t bytes, double *ns)
{
    *ns = by->given ? by->ns + (double)bytes / by->bytes : 0;
    return by->given;
}

static bool of_work(const struct work *work, double *ns)
{
    const struct copy_work *copy = &work->copy;
    const struct set_work *set = &work->set;

    switch (work->kind) {
    case WORK_KERNEL: return of_kernel(work->kernel.function->name, ns);
    case WORK_COPY:
        return of_bytes(&times.copy, (uint64_t)copy->width * copy->height * copy->depth, ns);
    case WORK_SET:
        return of_bytes(&times.fill, (uint64_t)set->width * set->height * set->element, ns);
    default: return false;
    }
}

static double scale_at(uint64_t begin_ns)
{
    double scale = 1;
    uint64_t first = 0;

    if (atomic_compare_exchange_strong(&times.first_ns, &first, begin_ns))
        first = begin_ns;
    for (unsigned i = 0; i < times.n_from; i++) {
        if ((double)(int64_t)(begin_ns - first) >= times.from[i].ns)
            scale = times.from[i].scale;
    }
    return scale;
}

static double noise_of(const struct op *op)
{
    uint64_t state = times.seed * 0x100000001b3u + op->order;
    double part = (double)(random_next(&state) >> 11) * 0x1p-53; /* 0 to 1 */

    return 1 + times.noise / 100 * (2 * part - 1);
}

bool times_of(const struct op *op, uint64_t begin_ns, uint64_t *ns)
{
    double exact;

    if (!times.given || !of_work(op->work, &exact))
        return false;
    exact *= times.devices[op->ctx->device] * scale_at(begin_ns) * noise_of(op);
    *ns = (uint64_t)(exact + 0.5);
    return true;
}
