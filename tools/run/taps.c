/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/run/taps.h"

#include "core/cleanup.h"
#include "policy/nearest.h"
#include "policy/tap_names.h"
#include "tools/common/command.h"
#include "tools/common/say.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODULE "module:"
#define BLOCKS "blocks."

/* A word of --attach: the gradients of all that the others name. */
#define GRADIENTS "gradients"

/* What a word of --attach stands for: a group's taps, itself, or nothing that has a name here. */
static const char *taps_of_word(const char *word)
{
    const struct tap_preset *preset = tap_preset(word);
    if (preset)
        return preset->taps;
    bool none = !strncmp(word, MODULE, strlen(MODULE)) || !strcmp(word, GRADIENTS);
    return none ? "" : word;
}

bool taps_add(char **list, const char *more)
{
    char *longer;
    if (!more || !*more)
        return true;
    if (asprintf(&longer, "%s%s%s", *list ? *list : "", *list ? "," : "", more) < 0)
        return false;
    free(*list);
    *list = longer;
    return true;
}

/* Adds the gradients of the taps in @names. Return: false without memory. */
static bool add_gradients(char **list, const char *names)
{
    _cleanup_(freep) char *words = strdup(names);
    bool good = words != NULL;
    for (char *save = NULL, *word = good ? strtok_r(words, ", ", &save) : NULL; word && good;
         word = strtok_r(NULL, ", ", &save)) {
        _cleanup_(freep) char *gradient = NULL;
        if (tap_has_gradient(word))
            good = asprintf(&gradient, "%s" TAP_GRADIENT, tap_canonical(word)) >= 0 &&
                   taps_add(list, gradient);
    }
    return good;
}

/* Does @sites have the word, or (@other) another one? */
static bool has_word(const char *sites, bool other)
{
    for (const char *p = sites; *p; p += strspn(p, ", ")) {
        size_t n = strcspn(p, ", ");
        bool is = n == strlen(GRADIENTS) && !strncmp(p, GRADIENTS, n);
        if (n && is != other)
            return true;
        p += n;
    }
    return false;
}

/* The taps that attach() makes under names of their own. */
static bool add_attached(char **list, const char *sites)
{
    _cleanup_(freep) char *words = strdup(sites);
    _cleanup_(freep) char *names = NULL;
    bool good = words != NULL;
    for (char *save = NULL, *word = good ? strtok_r(words, ", ", &save) : NULL; word && good;
         word = strtok_r(NULL, ", ", &save))
        good = taps_add(&names, taps_of_word(word));
    return good && taps_add(list, names) &&
           (!names || !has_word(sites, false) || add_gradients(list, names));
}

/* Names of taps that no attach() makes: attention keeps no scores in memory. */
static bool is_kept(const char *name)
{
    return strcmp(name, "attn_scores") && strcmp(name, "pattern");
}

/* Does @name, which may be a pattern, fit a tap that attach() makes? */
static bool is_attached(const char *name)
{
    for (size_t i = 0; tap_names[i]; i++)
        if (is_kept(tap_names[i]) &&
            (tap_is_pattern(name) ? !fnmatch(name, tap_names[i], 0) : !strcmp(name, tap_names[i])))
            return true;
    return false;
}

/* Is it module:PATTERN:in or :out? */
static bool is_module(const char *word)
{
    const char *side = strrchr(word, ':');
    return !strncmp(word, MODULE, strlen(MODULE)) && side - word > (ptrdiff_t)strlen(MODULE) &&
           (!strcmp(side, ":in") || !strcmp(side, ":out"));
}

/*
 * What a word names without the block of TransformerLens. A layer in it (blocks.3.) is for taps of a HookSpec, as no tap
 * is stored under such a name.
 */
static const char *without_block(const char *word, bool has_spec)
{
    const char *name = word + strlen(BLOCKS);
    if (!has_spec || strncmp(word, BLOCKS, strlen(BLOCKS)))
        return word;
    name += strspn(name, "0123456789");
    return *name == '.' ? name + 1 : word;
}

/* "; did you mean ...?" or ".", and the names of @known, NULL after the last one, in *@names, to be freed. */
static const char *hint_of(const char *word, const char *const *known, char *hint, size_t n_hint,
                           char **names)
{
    const char *all[TAP_NAMES_MAX];
    size_t n = 0;
    for (size_t i = 0; known[i]; i++)
        if (is_kept(known[i]) && taps_add(names, known[i]))
            all[n++] = known[i];
    nearest_hint(word, strlen(word), all, n, hint, n_hint);
    return *hint ? hint : ".";
}

/* Says which names there are in place of @word. */
static void complain_of_word(const char *word)
{
    char hint[128], groups[128];
    _cleanup_(freep) char *names = NULL;
    const char *near = hint_of(word, tap_names, hint, sizeof hint, &names);
    tap_preset_names(groups, sizeof groups);
    complain("--attach %s: no model has a site of that name%s Expected one of %s, a group (%s), a "
             "pattern, or module:PATTERN:in or :out",
             word, near, names ? names : "", groups);
}

/* Is each word of --write a place that attach() has? */
static bool names_places(const char *write)
{
    _cleanup_(freep) char *words = strdup(write);
    for (char *save = NULL, *word = words ? strtok_r(words, ", ", &save) : NULL; word;
         word = strtok_r(NULL, ", ", &save)) {
        size_t i = 0;
        while (tap_places[i] && strcmp(tap_canonical(word), tap_places[i]))
            i++;
        if (tap_places[i])
            continue;
        char hint[128];
        _cleanup_(freep) char *names = NULL;
        const char *near = hint_of(word, tap_places, hint, sizeof hint, &names);
        complain("--write %s: no model has a place of that name%s Expected some of %s; of a "
                 "program that taps itself, with --tap",
                 word, near, names ? names : "");
        return false;
    }
    return true;
}

/* Does each word of --attach stand for something? Python would say so only where a model comes. */
static bool names_sites(const char *sites, bool has_spec)
{
    _cleanup_(freep) char *words = strdup(sites);
    for (char *save = NULL, *word = words ? strtok_r(words, ", ", &save) : NULL; word;
         word = strtok_r(NULL, ", ", &save))
        if (!tap_preset(word) && !is_module(word) && strcmp(word, GRADIENTS) &&
            !is_attached(tap_canonical(without_block(word, has_spec)))) {
            complain_of_word(word);
            return false;
        }
    return true;
}

/* Are models of a program in Python tapped? */
static bool attaches(const struct taps_options *t)
{
    return t->attach || (t->write && !t->names && !t->preset);
}

/* Return: why the options do not go together, NULL: they do. */
static const char *objection(const struct taps_options *t, const struct tap_preset *preset,
                             bool has_spec)
{
    if (has_spec && (t->names || t->preset))
        return "--spec beside --tap or --preset: expected one; a HookSpec may name taps, too";
    if (t->attach && has_word(t->attach, false) && !has_word(t->attach, true))
        return "--attach gradients: of which sites? Expected them beside it, as "
               "residuals,gradients";
    if (has_spec && t->write)
        return "--spec beside --write: expected one; a HookSpec says \"write\" at its sites";
    if (t->layers && !t->names && !t->preset && !t->attach && !t->write)
        return "--layers without --spec, --tap, --preset, --attach or --write";
    if (t->model && !attaches(t))
        return "--model without --attach, --write or --steer of models of Hugging Face's: what "
               "else taps says itself of which model";
    if (preset && preset->layers && (t->names || t->layers || t->attach || t->write))
        return "a preset that has layers of its own: expected neither --tap, --layers, --attach "
               "nor --write beside it";
    if (t->write && (!*t->write || tap_is_pattern(t->write) || strchr(t->write, ':')))
        return "--write: expected names of taps, as resid_post,mlp_out";
    return NULL;
}

bool taps_complete(struct taps_options *t, bool has_spec)
{
    const struct tap_preset *preset = t->preset ? tap_preset(t->preset) : NULL;
    const char *why = objection(t, preset, has_spec);
    char known[128];
    tap_preset_names(known, sizeof known);
    if (t->preset && !preset) {
        complain("--preset %s: expected one of %s", t->preset, known);
        return false;
    }
    if (why) {
        complain("%s", why);
        return false;
    }
    if ((t->attach && !names_sites(t->attach, has_spec)) ||
        (t->write && attaches(t) && !names_places(t->write)))
        return false;
    if (!taps_add(&t->layers, preset ? preset->layers : NULL) || !taps_add(&t->all, t->names) ||
        !taps_add(&t->all, preset ? preset->taps : NULL) ||
        (t->attach && !has_spec && !add_attached(&t->all, t->attach))) {
        complain("no memory");
        return false;
    }
    if (t->attach && !has_spec && !taps_named(t)) {
        complain("--attach %s: taps of modules are stored by their names: expected --tap NAME, as "
                 "mlp.act_fn.out",
                 t->attach);
        return false;
    }
    return true;
}

/* Python finds the adapters, and attaches before the program's first forward. */
static bool set_attach(const struct taps_options *t)
{
    _cleanup_(freep) char *python = command_python();
    _cleanup_(freep) char *path = NULL;
    const char *old = getenv("PYTHONPATH");
    return python &&
           asprintf(&path, "%s/dmi/torch/start:%s%s%s", python, python, old && *old ? ":" : "",
                    old ? old : "") >= 0 &&
           command_set("PYTHONPATH", path) &&
           command_set("DMI_ATTACH", t->attach ? t->attach : "") &&
           command_set("DMI_ATTACH_WRITE", t->write ? t->write : "") &&
           command_set("DMI_ATTACH_MODEL", t->model ? t->model : "") &&
           command_set("DMI_ATTACH_LAYERS", t->layers ? t->layers : "");
}

bool taps_set(const struct taps_options *t)
{
    if (taps_named(t) && (!command_set("DMI_TAP", t->all ? t->all : "") ||
                          !command_set("DMI_TAP_WRITE", t->write ? t->write : "") ||
                          !command_set("DMI_TAP_LAYERS", t->layers ? t->layers : "")))
        return false;
    return !attaches(t) || set_attach(t);
}

void taps_deinit(struct taps_options *t)
{
    free(t->names);
    free(t->layers);
    free(t->attach);
    free(t->model);
    free(t->write);
    free(t->all);
    *t = (struct taps_options){ 0 };
}
