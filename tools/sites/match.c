/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/sites/match.h"

#include "core/cleanup.h"
#include "tools/sites/finding.h"
#include "tools/sites/write.h"

#include <errno.h>
#include <stdio.h>

static int write_all(struct err *err, const struct match_options *o, const struct finding *m)
{
    struct scene scene = finding_scene(m);
    _cleanup_(fclosep) FILE *out = fopen(o->spec, "w");
    if (!out)
        return err_set_errno(err, errno, "%s: cannot be written", o->spec);
    bool any = write_spec(out, &scene, &m->entries, o->model);
    write_report(stdout, &scene, &m->entries);
    if (!any)
        return err_set(err, -ENOENT, "no site was found that a HookSpec can name");
    return fflush(out) || ferror(out) ? err_set_errno(err, errno, "%s: cannot be written", o->spec)
                                      : 0;
}

int match(struct err *err, const struct match_options *o)
{
    struct finding finding;
    int r = finding_open(err, o->recording, o->reference, &finding);
    if (!r)
        r = finding_find(err, &finding);
    if (!r)
        r = write_all(err, o, &finding);
    finding_deinit(&finding);
    return r;
}
