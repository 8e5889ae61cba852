/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/sites/record.h"

#include "core/cleanup.h"
#include "tools/common/command.h"
#include "tools/common/say.h"
#include "tools/common/watch.h"
#include "tools/sites/recording.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXIT_USAGE 2

/* The command may change its folder before it starts CUDA. Return: NULL: said why. */
static char *absolute(const char *path)
{
    char *out = NULL;
    _cleanup_(freep) char *here = *path == '/' ? NULL : getcwd(NULL, 0);
    if (*path == '/')
        out = strdup(path);
    else if (here && asprintf(&out, "%s/%s", here, path) < 0)
        out = NULL;
    if (!out)
        complain("%s: %s", path, strerror(errno));
    return out;
}

/* The library makes a new file, and overwrites none. Return: false: said why. */
static bool make_room(const struct record_options *o, const char *out)
{
    if (access(out, F_OK))
        return true;
    if (!o->force)
        complain("%s is there already: --force replaces it", o->out);
    else if (!recording_is(out))
        complain("%s is there already, and no recording: --force replaces recordings", o->out);
    else if (unlink(out))
        complain("%s: cannot be replaced: %s", o->out, strerror(errno));
    else
        return true;
    return false;
}

int record(const struct record_options *o)
{
    _cleanup_(freep) char *out = absolute(o->out);
    _cleanup_(freep) char *library = out ? command_library() : NULL;
    if (!library)
        return EXIT_USAGE;
    if (!make_room(o, out))
        return EXIT_USAGE;
    unsetenv("DMI_SPEC");
    if (!command_set("DMI_RECORD", out) || !command_set("DMI_RECORD_BEGIN", o->begin) ||
        !command_set("DMI_RECORD_FORWARDS", o->forwards) ||
        !command_set("DMI_RECORD_BUDGET", o->budget) || !command_preload(library))
        return EXIT_USAGE;
    watch_start(strrchr(library, '/') + 1, getenv("DMI_LOG"), out, true);
    return command_become(o->command);
}
