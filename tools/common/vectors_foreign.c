/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/vectors_foreign.h"

#include "core/cleanup.h"
#include "tools/common/command.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define NOT_STARTED 127
/* The package's folder takes the place of the current one, from which Python would import what lies there. */
#define PROGRAM                                                                                    \
    "import sys; sys.path[0] = sys.argv.pop(1); from dmi.__main__ import guarded; "                \
    "sys.exit(guarded())"

/* A folder for one file, below TMPDIR. */
static int make_folder(struct err *err, struct foreign *out)
{
    const char *tmp = getenv("TMPDIR");
    if (asprintf(&out->folder, "%s/dmi-vectors-XXXXXX", tmp && *tmp ? tmp : "/tmp") < 0) {
        out->folder = NULL;
        return -ENOMEM;
    }
    if (!mkdtemp(out->folder)) {
        err_set(err, -EINVAL, "no folder for what Python writes of it: %s", strerror(errno));
        free(out->folder);
        out->folder = NULL;
        return -EINVAL;
    }
    if (asprintf(&out->path, "%s/vectors.safetensors", out->folder) < 0) {
        out->path = NULL;
        return -ENOMEM;
    }
    return 0;
}

/* In the child. */
_Noreturn static void become_python(const char *package, const char *path, const char *out,
                                    int said)
{
    const char *const command[] = { "python3", "-c", PROGRAM, package, "vectors",
                                    "-o",      out,  "--",    path,    NULL };
    int none = open("/dev/null", O_RDWR | O_CLOEXEC);
    unsetenv("LD_PRELOAD");
    if (none >= 0 && dup2(none, 0) == 0 && dup2(none, 1) == 1 && dup2(said, 2) == 2)
        execvp(*command, (char *const *)(uintptr_t)command);
    _exit(NOT_STARTED);
}

/* What comes, up to @n - 1 bytes; the rest is read and forgotten, so that the writer ends. */
static void read_text(int from, char *to, size_t n)
{
    char rest[512];
    size_t have = 0;
    for (;;) {
        bool full = have == n - 1;
        ssize_t got = read(from, full ? rest : to + have, full ? sizeof rest : n - 1 - have);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        have += full ? 0 : (size_t)got;
    }
    to[have] = 0;
}

/* Its last line, without "dmi: PATH: " in front of it. */
static const char *reason(char *said, const char *path)
{
    size_t n = strlen(said), k = strlen(path);
    while (n && said[n - 1] == '\n')
        said[--n] = 0;
    char *line = strrchr(said, '\n');
    line = line ? line + 1 : said;
    line += strncmp(line, "dmi: ", 5) ? 0 : 5;
    return strncmp(line, path, k) || strncmp(line + k, ": ", 2) ? line : line + k + 2;
}

static int run_python(struct err *err, const char *package, const char *path, const char *out)
{
    int ends[2], status = 0;
    char said[4096];
    if (pipe2(ends, O_CLOEXEC))
        return err_set(err, -EINVAL, "no pipe: %s", strerror(errno));
    _cleanup_(closep) int from = ends[0];
    pid_t child = fork();
    if (!child)
        become_python(package, path, out, ends[1]);
    close(ends[1]);
    if (child < 0)
        return err_set(err, -EINVAL, "no process: %s", strerror(errno));
    read_text(from, said, sizeof said);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        continue;
    if (WIFEXITED(status) && !WEXITSTATUS(status))
        return 0;
    if (WIFEXITED(status) && WEXITSTATUS(status) == NOT_STARTED && !*said)
        return err_set(err, -EINVAL, "python3 reads such files, and none is in PATH");
    return err_set(err, -EINVAL, "%s", *said ? reason(said, path) : "python3 did not end well");
}

int foreign_convert(struct err *err, const char *path, struct foreign *out)
{
    *out = (struct foreign){ 0 };
    _cleanup_(freep) char *package = command_python();
    if (!package)
        return err_set(err, -EINVAL, "it is Python that reads such files");
    int r = make_folder(err, out);
    return r ? r : run_python(err, package, path, out->path);
}

void foreign_deinit(struct foreign *foreign)
{
    if (foreign->path)
        unlink(foreign->path);
    if (foreign->folder)
        rmdir(foreign->folder);
    free(foreign->path);
    free(foreign->folder);
    *foreign = (struct foreign){ 0 };
}
