/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The patterns of a HookSpec: compiled once each, and what a kernel's name means to them.
 */
#include "policy/spec_load.h"

#include <stdlib.h>
#include <string.h>

struct regexes *regexes_new(void)
{
    struct regexes *all = calloc(1, sizeof *all);
    if (!all)
        return NULL;
    all->patterns = calloc(SPEC_MAX_SITES + SPEC_MAX_KINDS, sizeof *all->patterns);
    if (!all->patterns) {
        free(all);
        return NULL;
    }
    return all;
}

void regexes_free(struct regexes *all)
{
    if (!all)
        return;
    for (size_t i = 0; i < all->n; i++)
        pattern_deinit(&all->patterns[i]);
    free(all->patterns);
    free(all);
}

bool regexes_take(struct loader *l, const struct tree_node *node, const char *regex, int64_t at,
                  struct pattern *all, size_t *n, uint16_t *index)
{
    size_t i = 0;
    while (i < *n && strcmp(all[i].text, regex))
        i++;
    if (i == *n) {
        struct pattern_error error;
        int rc = pattern_compile(regex, &l->pattern_room, &all[i], &error);
        if (rc == PATTERN_E_INVALID)
            loader_complain_inside(l, node, at < 0 ? 0 : (size_t)at + error.offset, error.msg);
        else if (rc)
            loader_no_memory(l);
        if (rc)
            return false;
        ++*n;
    }
    *index = (uint16_t)i;
    return true;
}

bool regexes_add(struct loader *l, const struct tree_node *node, char **text, uint16_t *index)
{
    struct regexes *all = l->spec->regexes;
    if (!value_nonempty(l, node, "a POSIX extended regular expression on the kernel's name"))
        return false;
    if (!regexes_take(l, node, node->text, 0, all->patterns, &all->n, index))
        return false;
    *text = strdup(node->text);
    return *text || loader_no_memory(l);
}

bool spec_match_kernel(const struct spec *spec, const char *name, const char *demangled,
                       struct spec_match *match)
{
    const struct regexes *all = spec->regexes;
    bool hit[SPEC_MAX_SITES + SPEC_MAX_KINDS];
    for (size_t i = 0; i < all->n; i++)
        hit[i] = pattern_matches(&all->patterns[i], name) ||
                 (demangled && pattern_matches(&all->patterns[i], demangled));
    *match = (struct spec_match){ .kind = -1 };
    for (uint32_t i = 0; i < spec->n_kinds && match->kind < 0; i++)
        if (spec->kinds[i].kernel && hit[all->of_kind[i]])
            match->kind = (int)i;
    for (uint32_t i = 0; i < spec->n_sites; i++) {
        bool ranged = spec->sites[i].nvtx.pattern;
        bool named = all->of_site[i] != NO_PATTERN && hit[all->of_site[i]];
        if (!named && !(ranged && !spec->sites[i].about.kernel))
            continue;
        if (ranged && match->n_ranged < SPEC_MAX_RANGED)
            match->ranged[match->n_ranged++] = (uint16_t)i;
        else if (!ranged && match->n_sites < SPEC_MAX_MATCHES)
            match->sites[match->n_sites++] = i;
    }
    return match->kind >= 0 || match->n_sites || match->n_ranged;
}
