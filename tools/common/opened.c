/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/opened.h"

#include "tools/common/say.h"

#include <inttypes.h>

static void say(const char *path, const char *taken, uint64_t n_beside, uint64_t n_taken)
{
    if (n_beside && n_taken > 1)
        complain("%s holds %" PRIu64 " runs; these %" PRIu64 " are the latest, of one command",
                 path, n_beside + n_taken, n_taken);
    else if (n_beside)
        complain("%s holds %" PRIu64 " runs; this is the latest, %s", path, n_beside + n_taken,
                 taken);
}

int opened_index(struct err *err, const char *path, struct reader **out)
{
    TRY(reader_open_index(err, path, out));
    const struct reader_run *run = reader_run(*out);
    say(path, run->path, run->n_beside, run->n_runs);
    return 0;
}

int opened_run(const char *path, struct dmi_read **out, char *why, size_t n_why)
{
    TRY(dmi_read_open(path, out, why, n_why));
    struct dmi_read_run run = { .size = sizeof run };
    if (!dmi_read_run(*out, &run))
        say(path, run.path, run.n_beside, run.n_runs);
    return 0;
}
