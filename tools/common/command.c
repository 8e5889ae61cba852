/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/command.h"

#include "core/cleanup.h"
#include "tools/common/say.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXIT_NOT_EXECUTABLE 126
#define EXIT_NOT_FOUND      127
#define LIBRARY             "libdmi_preload.so"

bool command_size(const char *text, char *out, size_t n_out)
{
    char *end;
    errno = 0;
    if (*text < '0' || *text > '9')
        return false;
    unsigned long long n = strtoull(text, &end, 10);
    unsigned shift = *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
    if (errno || end[shift ? 1 : 0] || !n || n > (unsigned long long)LLONG_MAX >> shift)
        return false;
    snprintf(out, n_out, "%llu", n << shift);
    return true;
}

/* The first of @places, from this program's folder on, that is there. NULL: none is. */
static char *find_beside(const char *const *places, size_t n_places)
{
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n < 0)
        return NULL;
    self[n] = 0;
    *strrchr(self, '/') = 0;
    for (size_t i = 0; i < n_places; i++) {
        _cleanup_(freep) char *path = NULL;
        if (asprintf(&path, "%s/%s", self, places[i]) < 0)
            return NULL;
        char *found = realpath(path, NULL);
        if (found)
            return found;
    }
    return NULL;
}

/* In a build folder, or where it was installed. NULL: none there. */
static char *find_library(void)
{
    static const char *const places[] = { "../preload/" LIBRARY, "../" DMI_LIBDIR "/dmi/" LIBRARY,
                                          "../lib/dmi/" LIBRARY };
    const char *given = getenv("DMI_PRELOAD_PATH");
    return given && *given ? realpath(given, NULL)
                           : find_beside(places, sizeof places / sizeof *places);
}

char *command_python(void)
{
    static const char *const places[] = { "../../../python", "../" DMI_DATADIR "/dmi/python",
                                          "../share/dmi/python" };
    char *python = find_beside(places, sizeof places / sizeof *places);
    if (!python)
        complain("cannot find the folder of the Python package dmi beside this program");
    return python;
}

char *command_library(void)
{
    char *library = find_library();
    if (!library)
        complain("cannot find " LIBRARY " %s", getenv("DMI_PRELOAD_PATH")
                                                   ? "where DMI_PRELOAD_PATH says"
                                                   : "beside this program; set DMI_PRELOAD_PATH");
    return library;
}

/* true if @list (separated by colons or spaces, as the loader reads it) holds @path */
static bool list_holds(const char *list, const char *path)
{
    size_t n = strlen(path);
    for (const char *p = list; (p = strstr(p, path)); p += n)
        if ((p == list || strchr(": ", p[-1])) && strchr(": ", p[n]))
            return true;
    return false;
}

bool command_set(const char *name, const char *value)
{
    if (value && setenv(name, value, 1)) {
        complain("cannot set %s: %s", name, strerror(errno));
        return false;
    }
    return true;
}

bool command_preload(const char *library)
{
    if (strpbrk(library, ": ")) {
        complain(
            "%s: a path with a space or colon cannot be preloaded; copy the library elsewhere and "
            "set DMI_PRELOAD_PATH",
            library);
        return false;
    }
    const char *old = getenv("LD_PRELOAD");
    if (!old || !*old)
        return command_set("LD_PRELOAD", library);
    if (list_holds(old, library))
        return true;
    _cleanup_(freep) char *both = NULL;
    return asprintf(&both, "%s:%s", library, old) >= 0 && command_set("LD_PRELOAD", both);
}

int command_become(char **command)
{
    execvp(*command, command);
    int why = errno;
    complain("%s: %s", *command, strerror(why));
    return why == ENOENT ? EXIT_NOT_FOUND : EXIT_NOT_EXECUTABLE;
}
