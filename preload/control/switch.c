/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/control/switch.h"

#include "core/atomic.h"
#include "core/cleanup.h"
#include "policy/nearest.h"
#include "preload/session/session.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Patterns, one after the other, each with its NUL. */
struct pattern_list {
    char *first, *end;
};

static bool split(const char *patterns, struct pattern_list *out)
{
    out->first = strdup(patterns);
    if (!out->first)
        return false;
    out->end = out->first + strlen(patterns);
    for (char *at = out->first; *(at += strcspn(at, " \t"));)
        *at++ = 0;
    return true;
}

/* Is the site meant by one of them? */
static bool is_meant(uint32_t site, const struct pattern_list *words)
{
    for (const char *word = words->first; word < words->end; word += strlen(word) + 1)
        if (!spec_is_place(session_site(site)) && *word &&
            !fnmatch(word, session_site(site)->about.name, 0))
            return true;
    return false;
}

/* After the word, a few bytes of the nearest name. */
static void name_nearest(const char *word, char *why, size_t n_why)
{
    uint32_t n = 0;
    char hint[96] = "";
    _cleanup_(freep) const char **names = calloc(session.spec->n_sites + 1, sizeof *names);
    for (uint32_t i = 0; names && i < session.spec->n_sites; i++)
        if (!spec_is_place(session_site(i))) /* places for edits are not switched */
            names[n++] = session_site(i)->about.name;
    if (names)
        nearest_hint(word, strlen(word), names, n, hint, sizeof hint);
    snprintf(why, n_why, "no site's name matches '%.100s'%s (status lists them)", word, hint);
}

bool switch_knows(const char *patterns, char *why, size_t n_why)
{
    struct pattern_list words;
    snprintf(why, n_why, "no memory");
    if (!split(patterns, &words))
        return false;
    _cleanup_(freep) char *owned = words.first;
    bool any = false, known = true;
    for (const char *word = words.first; known && word < words.end; word += strlen(word) + 1) {
        const struct pattern_list one = { (char *)(uintptr_t)word, (char *)(uintptr_t)word + 1 };
        known = !*word;
        any |= !known;
        for (uint32_t i = 0; !known && i < session.spec->n_sites; i++)
            known = is_meant(i, &one);
        if (!known)
            name_nearest(word, why, n_why);
    }
    if (known && !any)
        snprintf(why, n_why, "no site's name matches (status lists them)");
    return known && any;
}

static bool would_change(uint32_t site, bool on)
{
    return atomic_load_relaxed(&session.off[site]) == (on ? SITE_OFF : SITE_ON);
}

static int note_by_program(const char *patterns, bool on)
{
    _cleanup_(freep) char *what = NULL;
    if (asprintf(&what, "sites %s %s, by dmi_site_enable()", on ? "on" : "off", patterns) < 0) {
        what = NULL;
        return -ENOMEM;
    }
    return session_note_change(what, false);
}

int switch_sites(const char *patterns, bool on, const char *what)
{
    struct pattern_list words;
    if (!split(patterns, &words))
        return -ENOMEM;
    _cleanup_(freep) char *owned = words.first;
    int n = 0, r = 0;
    bool changes = false;
    for (uint32_t i = 0; i < session.spec->n_sites; i++)
        if (is_meant(i, &words)) {
            n++;
            changes = changes || would_change(i, on);
        }
    if (n && what)
        r = session_note_change(what, true);
    else if (changes)
        r = note_by_program(patterns, on);
    for (uint32_t i = 0; i < session.spec->n_sites && n && !r; i++)
        if (is_meant(i, &words))
            session_site_switch(i, on);
    return r ? r : n;
}
