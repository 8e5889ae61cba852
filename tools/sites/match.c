/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/sites/match.h"

#include "core/cleanup.h"
#include "core/err.h"
#include "policy/spec.h"
#include "storage/file.h"
#include "tools/sites/finding.h"
#include "tools/sites/head.h"
#include "tools/sites/write.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* What the library would refuse is not written. */
static int refuse_errors(struct err *err, const char *path, const char *text, size_t n)
{
    struct spec_errors errors = { 0 };
    struct spec *spec = NULL;
    int r = spec_parse(path, text, n, NULL, 0, &errors, &spec);
    if (r)
        r = err_set(err, r, "not written, it would be wrong: %s",
                    errors.n_lines ? errors.lines[0] : strerror(-r));
    spec_errors_deinit(&errors);
    spec_free(spec);
    return r;
}

static void spec_freep(struct spec **spec)
{
    spec_free(*spec);
}

/* The HookSpec that is there. Return: 0 or an error in @err; *@out is NULL where there is none. */
static int read_old(struct err *err, const char *path, struct spec **out)
{
    struct spec_errors errors = { 0 };
    int r = spec_load(path, NULL, 0, &errors, out);
    if (r == -ENOENT)
        r = 0;
    else if (r)
        r = err_set(err, r, "cannot be written anew: %s",
                    errors.n_lines ? errors.lines[0] : strerror(-r));
    spec_errors_deinit(&errors);
    return r;
}

static int compose(struct err *err, const struct match_options *o, const struct finding *m,
                   const struct spec *old, FILE *out)
{
    struct scene scene = finding_scene(m);
    if (old)
        head_copy(old->text, out);
    else
        write_head(out, o->model);
    bool any = write_spec(out, &scene, &m->entries, old);
    write_report(stdout, &scene, &m->entries);
    if (!any)
        return err_set(err, -ENOENT, "no site was found that a HookSpec can name");
    return fflush(out) ? err_set_errno(err, errno, "%s", o->spec) : 0;
}

static int write_all(struct err *err, const struct match_options *o, const struct finding *m,
                     const struct spec *old)
{
    _cleanup_(freep) char *text = NULL;
    size_t n = 0;
    _cleanup_(fclosep) FILE *out = open_memstream(&text, &n);
    if (!out)
        return err_set_errno(err, errno, "%s", o->spec);
    int r = compose(err, o, m, old, out);
    if (!r)
        r = refuse_errors(err, o->spec, text, n);
    if (r)
        return r;
    r = file_replace(o->spec, text, n, 0);
    return r ? err_set_errno(err, -r, "%s: cannot be written", o->spec) : 0;
}

int match(struct err *err, const struct match_options *o)
{
    struct finding finding;
    _cleanup_(spec_freep) struct spec *old = NULL;
    TRY(read_old(err, o->spec, &old));
    int r = finding_open(err, o->recording, o->reference, &finding);
    if (!r)
        r = finding_find(err, &finding);
    if (!r)
        r = write_all(err, o, &finding, old);
    finding_deinit(&finding);
    return r;
}
