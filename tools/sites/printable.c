/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/sites/printable.h"

#include "core/utf8.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int put(const char *s, size_t n)
{
    for (ssize_t done; n; s += done, n -= (size_t)done) {
        done = write(STDOUT_FILENO, s, n);
        if (done < 0 && errno != EINTR)
            return -1;
        done = done < 0 ? 0 : done;
    }
    return 0;
}

/* Lines are buffered whole where they fit, so that a character is cut only in one of BUFSIZ bytes and more: then it is '?'. */
static ssize_t pass(void *cookie, const char *s, size_t n)
{
    char out[BUFSIZ];
    size_t used = 0;
    (void)cookie;
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t c;
        len = utf8_next(s + i, n - i, &c);
        bool plain = len && (c == '\n' || utf8_is_printable(c));
        if (used + 4 > sizeof out) {
            if (put(out, used))
                return 0;
            used = 0;
        }
        memcpy(out + used, plain ? s + i : "?", plain ? len : 1);
        used += plain ? len : 1;
        len = len ? len : 1;
    }
    return put(out, used) ? 0 : (ssize_t)n;
}

void printable_install(void)
{
    FILE *stream = fopencookie(NULL, "w", (cookie_io_functions_t){ .write = pass });
    if (!stream)
        return;
    setvbuf(stream, NULL, _IOLBF, BUFSIZ);
    stdout = stream;
}

char *printable_name(char *name)
{
    for (char *at = name; at && (at = strchr(at, '\n'));)
        *at = '\1';
    return name;
}
