/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/run/edits.h"

#include "core/cleanup.h"
#include "storage/text.h"
#include "tools/common/command.h"
#include "tools/common/say.h"
#include "tools/common/vectors.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool edits_complete(const struct edits_options *o)
{
    if (o->file && o->steer)
        complain("--edits beside --steer: expected one; a file of edits may hold several");
    else if (o->times && !o->steer)
        complain("--times without --steer: a file of edits says coefficients itself");
    else
        return true;
    return false;
}

/* ------------------------------------------------------------------------- --steer */

/* One edit that adds the vector, at each site that is a place. */
static void add_edit(struct text *t, const struct edits_options *o, const char *site, unsigned n)
{
    text_printf(t, "%s\n  {\"name\": \"steer-%u\", \"site\": ", n ? "," : "", n);
    text_json(t, site);
    if (o->layers) {
        text_printf(t, ", \"layers\": ");
        text_json(t, o->layers);
    }
    text_printf(t, ", \"do\": [{\"add\": \"steer\", \"times\": %s}]}", o->times ? o->times : "1");
}

static bool names_it_before(const struct spec *spec, uint32_t site)
{
    for (uint32_t i = 0; i < site; i++)
        if (spec->sites[i].action == SPEC_EDIT &&
            !strcmp(spec->sites[i].about.name, spec->sites[site].about.name))
            return true;
    return false;
}

/* The text that --steer stands for. Return: NULL: said why. */
static char *steer_text(const struct edits_options *o, const struct spec *spec)
{
    struct text t = { 0 };
    unsigned n = 0;
    _cleanup_(freep) char *path = realpath(o->steer, NULL);
    if (!path) {
        complain("--steer %s: %s", o->steer, strerror(errno));
        return NULL;
    }
    text_printf(&t, "{\"editspec\": 1, \"vectors\": {\"steer\": {\"file\": ");
    text_json(&t, path);
    text_printf(&t, "}}, \"edits\": [");
    for (uint32_t i = 0; i < spec->n_sites; i++)
        if (spec->sites[i].action == SPEC_EDIT && !names_it_before(spec, i))
            add_edit(&t, o, spec->sites[i].about.name, n++);
    text_printf(&t, "]}\n");
    if (!n)
        complain("--steer: the HookSpec has no site with \"write\": expected one, as edits write "
                 "there");
    if (t.failed)
        complain("no memory");
    if (n && !t.failed) {
        text_add(&t, "", 1);
        return t.data;
    }
    text_deinit(&t);
    return NULL;
}

static struct edits *read_steer(const struct edits_options *o, const struct spec *spec)
{
    _cleanup_(freep) char *text = steer_text(o, spec);
    return text ? vectors_edits_of("--steer", text, strlen(text), spec, o->command) : NULL;
}

/* ------------------------------------------------------------------------- both */

bool edits_read(struct edits_options *o, const struct spec *spec, bool check)
{
    o->read = o->steer ? read_steer(o, spec) : vectors_edits(o->file, spec, o->command);
    if (o->read && check)
        printf("%s: %u edit%s, %u vector%s: no error\n", o->steer ? "--steer" : o->file, o->read->n,
               o->read->n == 1 ? "" : "s", o->read->n_vectors, o->read->n_vectors == 1 ? "" : "s");
    return o->read != NULL;
}

static bool write_all(int fd, const char *data, size_t n)
{
    while (n) {
        ssize_t done = write(fd, data, n);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return false;
        data += done;
        n -= (size_t)done;
    }
    return true;
}

bool edits_set(const struct edits_options *o, const char *out)
{
    void *data = NULL;
    size_t n;
    _cleanup_(freep) char *path = NULL;
    if (asprintf(&path, "%s/edits-XXXXXX", out) < 0 || edits_pack(o->read, &data, &n)) {
        complain("no memory for edits");
        return false;
    }
    _cleanup_(freep) char *owned = data;
    _cleanup_(closep) int fd = mkstemp(path); /* for the user's eyes only */
    if (fd >= 0 && write_all(fd, owned, n))
        return command_set("DMI_EDITS", path);
    complain("%s: edits cannot be written: %s", path, strerror(errno));
    return false;
}

void edits_deinit(struct edits_options *o)
{
    edits_free(o->read);
    free(o->layers);
    o->read = NULL;
    o->layers = NULL;
}
