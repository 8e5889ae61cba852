/* SPDX-License-Identifier: Apache-2.0 */
/* Which rows, requests and steps a site of a HookSpec keeps. Source: docs/hookspec.md, "Which rows". */
#include "policy/spec_load.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------- tokens */

#define OF_PROMPT "prompt["

/* A position or a slice, of the request or, as prompt[-3:], of its prompt. */
static bool range_of(const char *text, struct select *s)
{
    struct slice slice;
    size_t n = strlen(text), n_head = strlen(OF_PROMPT);
    s->of_prompt = n > n_head && !strncmp(text, OF_PROMPT, n_head) && text[n - 1] == ']';
    if (s->of_prompt) {
        text += n_head;
        n -= n_head + 1;
    }
    if (!slice_parse(text, n, &slice))
        return false;
    if (slice.first == -1 &&
        !memchr(text, ':', n)) { /* the end of its slice is that of the prompt */
        s->tokens = SELECT_LAST_PROMPT;
        return true;
    }
    s->tokens = SELECT_RANGE;
    s->first = slice.first;
    s->end = slice.end;
    return true;
}

bool value_tokens(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    static const char *const words[] = {
        [SELECT_PROMPT] = "prompt",
        [SELECT_GENERATED] = "generated",
        [SELECT_LAST] = "last",
        [SELECT_LAST_PROMPT] = "last_prompt",
    };
    (void)arg;
    struct select *s = into;
    char was[128], hint[128] = "";
    for (size_t i = SELECT_PROMPT; node->kind == TREE_SCALAR && i < N_OF(words); i++)
        if (!strcmp(node->text, words[i])) {
            s->tokens = (enum select_tokens)i;
            return true;
        }
    if (node->kind == TREE_SCALAR && range_of(node->text, s))
        return true;
    if (node->kind == TREE_SCALAR)
        slice_hint(node->text, strlen(node->text), hint, sizeof hint);
    loader_complain(
        l, node,
        "found %s; expected prompt, generated, last, last_prompt, a position, 'A:B' or "
        "'prompt[A:B]', positions of which B, above A, is the first that is left out; below 0 they "
        "count from the end of the prompt%s",
        node_found(node, was, sizeof was), hint);
    return false;
}

bool site_tokens(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    return value_tokens(l, node, &((struct spec_site *)into)->choice, arg);
}

/* ------------------------------------------------------------------------- requests */

#define TAG "tag:"

/* 'tag:KEY=PATTERN', after the prefix. */
static bool tag_and_pattern(struct loader *l, const struct tree_node *node, struct select *s)
{
    const char *key = node->text + strlen(TAG), *equals = strchr(key, '=');
    if (!equals || equals == key || !equals[1]) {
        loader_complain(l, node, "found a tag without key or pattern; expected 'tag:KEY=PATTERN'");
        return false;
    }
    s->tag = strndup(key, (size_t)(equals - key));
    s->requests = strdup(equals + 1);
    return s->tag && s->requests ? true : loader_no_memory(l);
}

bool value_requests(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    struct select *s = into;
    if (node->kind == TREE_SCALAR && !strncmp(node->text, TAG, strlen(TAG)))
        return tag_and_pattern(l, node, s);
    return value_string(l, node, &s->requests, arg);
}

bool site_requests(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    return value_requests(l, node, &((struct spec_site *)into)->choice, arg);
}

/* ------------------------------------------------------------------------- steps */

static const struct key steps_keys[] = {
    { "every", true, value_integer, offsetof(struct spec_steps, every), RANGE(1, INT64_MAX) },
    { "of", false, value_word, offsetof(struct spec_steps, of),
      WORDS([SPEC_STEPS_FORWARD] = "forward", [SPEC_STEPS_ENGINE] = "engine") },
};

bool site_steps(struct loader *l, const struct tree_node *node, void *into, const void *arg)
{
    (void)arg;
    return keys_read(l, node, "steps", steps_keys, N_OF(steps_keys),
                     &((struct spec_site *)into)->steps);
}

/* ------------------------------------------------------------------------- each once */

/* Takes over @s. Return: its index among the spec's, SPEC_MAX_SELECTS: there are too many. */
static uint32_t choice_add(struct spec *spec, struct select *s)
{
    for (uint32_t i = 0; i < spec->n_selects; i++)
        if (select_same(&spec->selects[i], s)) {
            select_deinit(s);
            return i;
        }
    if (spec->n_selects == SPEC_MAX_SELECTS) {
        select_deinit(s);
        return SPEC_MAX_SELECTS;
    }
    spec->selects[spec->n_selects] = *s;
    return spec->n_selects++;
}

void select_settle(struct loader *l, const struct tree_node *node, struct spec_site *site)
{
    struct select s = site->choice;
    site->choice = (struct select){ 0 };
    s.row = site->about.row;
    site->select = SPEC_NO_SELECT;
    if (site->about.row != DMI_ROW_NONE) {
        site->select = choice_add(l->spec, &s);
        if (site->select == SPEC_MAX_SELECTS)
            loader_complain(l, node, "found more than %d different choices of rows",
                            SPEC_MAX_SELECTS);
        return;
    }
    if (!select_is_default(&s))
        loader_complain(l, node,
                        "found a choice of rows at a site with row: none; expected row: token or "
                        "row: request");
    select_deinit(&s);
}

void selects_free(struct spec *spec)
{
    for (uint32_t i = 0; i < spec->n_selects; i++)
        select_deinit(&spec->selects[i]);
    for (uint32_t i = 0; i < spec->n_sites; i++)
        select_deinit(&spec->sites[i].choice);
    spec->n_selects = 0;
}
