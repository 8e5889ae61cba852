/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/say.h"

#include "core/cleanup.h"
#include "core/words.h"
#include "read/utf8.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

static void (*before)(void);

void say_before(void (*fn)(void))
{
    before = fn;
}

void say_line(FILE *to, const char *prefix, const char *s, size_t n)
{
    _cleanup_(text_deinit) struct text line = { 0 };
    text_add(&line, prefix, strlen(prefix));
    utf8_add_printable(&line, s, n);
    text_add(&line, "\n", 1);
    if (before)
        before();
    if (!line.failed)
        fwrite(line.data, 1, line.n, to);
}

void say_formatted(FILE *to, const char *prefix, const char *fmt, va_list ap)
{
    _cleanup_(freep) char *s = NULL;
    int n = vasprintf(&s, fmt, ap);
    if (n >= 0)
        say_line(to, prefix, s, (size_t)n);
    else
        s = NULL;
}

void complain_of(const char *fmt, va_list ap)
{
    char prefix[64];
    snprintf(prefix, sizeof prefix, "%s: ", program_invocation_short_name);
    say_formatted(stderr, prefix, fmt, ap);
}

void complain(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    complain_of(fmt, ap);
    va_end(ap);
}

static bool reader_left(void)
{
    struct pollfd p = { .fd = STDOUT_FILENO, .events = POLLOUT };
    return poll(&p, 1, 0) > 0 && (p.revents & (POLLERR | POLLHUP));
}

int say_flush(int status, int failed)
{
    if ((!fflush(stdout) && !ferror(stdout)) || reader_left())
        return status;
    complain("cannot write the output: %s", strerror(errno));
    return failed;
}

const char *grouped(uint64_t n, char out[32])
{
    char plain[24];
    int length = snprintf(plain, sizeof plain, "%" PRIu64, n), used = 0;
    for (int i = 0; i < length; i++) {
        if (i && (length - i) % 3 == 0)
            out[used++] = ',';
        out[used++] = plain[i];
    }
    out[used] = 0;
    return out;
}

const char *counted(uint64_t n, const char *one, const char *several, char out[COUNTED_BYTES])
{
    char number[32];
    snprintf(out, COUNTED_BYTES, "%s %s", grouped(n, number), word_for(n, one, several));
    return out;
}

const char *bytes_text(double n, char out[24])
{
    static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB" };
    int u = 0;
    while (n >= 1024 && u < 4) {
        n /= 1024;
        u++;
    }
    snprintf(out, 24, u ? "%.1f %s" : "%.0f %s", n, units[u]);
    return out;
}
