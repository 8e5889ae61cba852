/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/trace/export_file.h"

#include "core/cleanup.h"
#include "core/err.h"
#include "tools/common/leftover.h"
#include "tools/common/say.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

FILE *export_file_open(struct outfile *place, char **paths, const char *file, const char *option)
{
    struct err err = { 0 };
    int r = 0;
    leftover_install();
    for (size_t i = 0; !r && paths[i]; i++) {
        outfile_deinit(place);
        *place = (struct outfile){ .option = option, .fd = -1 };
        r = outfile_choose(&err, place, file, paths[i], "", false);
    }
    r = r ? r : outfile_open(&err, place);
    if (r) {
        complain("%s", err.msg);
        return NULL;
    }
    _cleanup_(closep) int fd = fcntl(place->fd, F_DUPFD_CLOEXEC, 3);
    FILE *to = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (to)
        fd = -1;
    else
        complain("cannot write %s: %s", file, strerror(errno));
    return to;
}

int export_file_close(FILE *to, int error, struct outfile *place, int r)
{
    struct err err = { 0 };
    if (fclose(to) && !error)
        error = errno;
    if (error)
        complain("cannot write %s: %s", place->path, strerror(error));
    if (r || error)
        return REPORT_IMPOSSIBLE;
    if (!outfile_keep(&err, place))
        return 0;
    complain("%s", err.msg);
    return REPORT_IMPOSSIBLE;
}

int export_steps_of(const struct export_asked *asked, const struct trace_run *run,
                    struct runs_steps *out)
{
    *out = (struct runs_steps){ 0 };
    if (asked->last_ns)
        return runs_last(run, asked->last_ns, out);
    if (asked->steps) {
        *out = *asked->steps;
        return 0;
    }
    if (runs_kept(run, out))
        return 0;
    complain("no memory");
    return REPORT_IMPOSSIBLE;
}

void export_say_none(const struct export_asked *asked, const char *path)
{
    if (asked->steps || asked->last_ns)
        runs_say_none(path);
    else
        complain("%s has no step that dmi-ctl trace keep stored", path);
}
