/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/run/edits.h"

#include "core/cleanup.h"
#include "policy/number.h"
#include "policy/tree.h"
#include "storage/text.h"
#include "tools/common/command.h"
#include "tools/common/say.h"
#include "tools/common/sealed.h"
#include "tools/common/vectors.h"

#include <errno.h>
#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_number(const struct tree_node *node)
{
    double number;
    return node->kind == TREE_SCALAR && parse_decimal(node->text, &number) && number < FLT_MAX &&
           number > -FLT_MAX;
}

/* Adds what --times says: a number, points, or a tag, and no other text. Return: false: it says none of these. */
static bool add_times(struct text *t, const char *times)
{
    struct tree_error error;
    struct tree tree = { 0 };
    const struct tree_node *root =
        tree_parse(times, strlen(times), &tree, &error) ? NULL : tree.root;
    bool good = root && (is_number(root) || root->kind == TREE_MAP);
    if (root && root->kind == TREE_SCALAR && !strncmp(root->text, "tag:", 4)) {
        text_json(t, root->text);
        good = true;
    } else if (good && root->kind == TREE_SCALAR) {
        text_printf(t, "%s", root->text);
    } else if (good) {
        for (size_t i = 0; i < root->n_items && good; i++) {
            good = is_number(root->items[i]);
            text_printf(t, i % 2 ? ": " : i ? ", " : "{");
            text_printf(t, "%s", good ? root->items[i]->text : "");
        }
        text_printf(t, "}");
        good = good && root->n_items;
    }
    tree_deinit(&tree);
    return good;
}

static bool are_times(const char *times)
{
    _cleanup_(text_deinit) struct text t = { 0 };
    return add_times(&t, times);
}

bool edits_complete(const struct edits_options *o)
{
    if (o->file && o->steer)
        complain("--edits beside --steer: expected one; a file of edits may hold several");
    else if (o->times && !o->steer)
        complain("--times without --steer: a file of edits says coefficients itself");
    else if (o->times && !are_times(o->times))
        complain("--times: found \"%s\"; expected a decimal number, as 2 or -0.5", o->times);
    else if (o->site && !o->steer)
        complain("--site without --steer: a file of edits says its sites itself");
    else if (o->pass && !o->steer)
        complain("--pass without --steer: a file of edits says passes itself");
    else if (o->lenient && !edits_wanted(o))
        complain(
            "--lenient without --edits or --steer: other failures keep no command from running");
    else
        return true;
    return false;
}

/* ------------------------------------------------------------------------- --steer */

/* The next place, by name, from site *@i on. Return: NULL: there is none more. */
static const char *next_place(const struct spec *spec, uint32_t *i)
{
    for (; *i < spec->n_sites; ++*i) {
        const struct spec_site *site = &spec->sites[*i];
        uint32_t before = 0;
        while (before < *i && !(spec->sites[before].action == SPEC_EDIT &&
                                !strcmp(spec->sites[before].about.name, site->about.name)))
            before++;
        if (site->action == SPEC_EDIT && before == *i)
            return spec->sites[(*i)++].about.name;
    }
    return NULL;
}

/* Which of the places the vector is for: one, as it would be added at each. Return: NULL: said why. */
static const char *place_of(const struct edits_options *o, const struct spec *spec)
{
    _cleanup_(text_deinit) struct text names = { 0 };
    uint32_t i = 0, n = 0;
    const char *name, *first = NULL;
    while ((name = next_place(spec, &i))) {
        first = first ? first : name;
        if (o->site && !strcmp(name, o->site))
            return name;
        text_printf(&names, "%s%s", n++ ? ", " : "", name);
    }
    text_add(&names, "", 1);
    if (n == 1 && !o->site)
        return first;
    if (!n)
        complain("--steer: the HookSpec has no site with \"write\": expected one, as edits write "
                 "there");
    else if (names.failed)
        complain("no memory");
    else if (o->site)
        complain("--site %s: is no place for edits; the places are %s", o->site, names.data);
    else
        complain("--steer %s: expected --site with one of %s: the vector is added at one place",
                 o->steer, names.data);
    return NULL;
}

/* The text that --steer stands for. Return: NULL: said why. */
static char *steer_text(const struct edits_options *o, const struct spec *spec)
{
    struct text t = { 0 };
    const char *site = place_of(o, spec);
    _cleanup_(freep) char *path = site ? realpath(o->steer, NULL) : NULL;
    if (!path) {
        if (site)
            complain("--steer %s: %s", o->steer, strerror(errno));
        return NULL;
    }
    text_printf(&t, "{\"editspec\": 1, \"vectors\": {\"steer\": {\"file\": ");
    text_json(&t, path);
    text_printf(&t, "}}, \"edits\": [\n  {\"name\": \"steer-0\", \"site\": ");
    text_json(&t, site);
    if (o->layers) {
        text_printf(&t, ", \"layers\": ");
        text_json(&t, o->layers);
    }
    if (o->pass) {
        text_printf(&t, ", \"pass\": ");
        text_json(&t, o->pass);
    }
    text_printf(&t, ", \"do\": [{\"add\": \"steer\", \"times\": ");
    add_times(&t, o->times ? o->times : "1");
    text_printf(&t, "}]}]}\n");
    text_add(&t, "", 1);
    if (!t.failed)
        return t.data;
    complain("no memory");
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

bool edits_hold(const struct edits_options *o, struct holder *holder, char **argv)
{
    struct err err = { 0 };
    void *data = NULL;
    size_t n;
    if (edits_pack(o->read, &data, &n)) {
        complain("no memory for edits");
        return false;
    }
    _cleanup_(freep) char *owned = data;
    int fd = sealed_memory(&err, "dmi-edits", owned, n);
    if (fd >= 0 && !holder_start(holder, &err, fd, argv))
        return command_set(HOLDER_VARIABLE, holder->path);
    complain("the edits cannot be handed to the command: %s", err.msg);
    return false;
}

void edits_deinit(struct edits_options *o)
{
    edits_free(o->read);
    free(o->layers);
    o->read = NULL;
    o->layers = NULL;
}
