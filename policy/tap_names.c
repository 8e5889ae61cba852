/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/tap_names.h"

#include "core/any.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ID: of something. PLACE: edits may write there where attach() taps. */
/* clang-format off */
#define TAP_NAMES(NAME, ID, PLACE) \
    ID(token_ids) PLACE(embed) NAME(resid_pre) PLACE(ln1) PLACE(q) PLACE(k) PLACE(v) NAME(q_rot) \
    NAME(k_rot) PLACE(z) PLACE(attn_out) PLACE(resid_mid) PLACE(ln2) NAME(mlp_in) PLACE(mlp_post) \
    PLACE(mlp_out) PLACE(resid_post) NAME(router_logits) ID(topk_ids) NAME(topk_weights) \
    NAME(attn_scores) NAME(pattern) NAME(resid_final) PLACE(final_ln) NAME(final_logits)
/* clang-format on */

#define TEXT(name)     #name,
#define GRADIENT(name) #name TAP_GRADIENT,
#define NONE(name)

const char *const tap_names[] = { TAP_NAMES(TEXT, TEXT, TEXT) NULL };
const char *const tap_gradient_names[] = { TAP_NAMES(GRADIENT, NONE, GRADIENT) NULL };
const char *const tap_places[] = { TAP_NAMES(NONE, NONE, TEXT) NULL };

bool tap_has_gradient(const char *name)
{
    static const char *const ids[] = { TAP_NAMES(NONE, TEXT, NONE) };
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
        if (!strcmp(name, ids[i]))
            return false;
    return true;
}

bool tap_is_gradient(const char *text)
{
    size_t n = text ? strlen(text) : 0, suffix = strlen(TAP_GRADIENT);
    return n > suffix && !strcmp(text + n - suffix, TAP_GRADIENT);
}

bool tap_is_pattern(const char *text)
{
    return strpbrk(text, "*?[") != NULL;
}

/* ------------------------------------------------------------------------- TransformerLens */

/*
 * Only what means the same: its hook_normalized is taken before a norm's weight, its hook_mlp_in before the norm, its
 * mlp.hook_pre before the activation.
 */
static const struct tap_alias {
    const char *theirs, *ours;
} aliases[] = {
    { "hook_tokens", "token_ids" },
    { "hook_embed", "embed" },
    { "hook_resid_pre", "resid_pre" },
    { "hook_resid_mid", "resid_mid" },
    { "hook_resid_post", "resid_post" },
    { "attn.hook_q", "q" },
    { "attn.hook_k", "k" },
    { "attn.hook_v", "v" },
    { "attn.hook_rot_q", "q_rot" },
    { "attn.hook_rot_k", "k_rot" },
    { "attn.hook_z", "z" },
    { "attn.hook_attn_scores", "attn_scores" },
    { "attn.hook_pattern", "pattern" },
    { "hook_attn_out", "attn_out" },
    { "mlp.hook_post", "mlp_post" },
    { "hook_mlp_out", "mlp_out" },
};

const char *tap_canonical(const char *text)
{
    static const char prefix[] = "blocks.*.";
    const char *name = strncmp(text, prefix, sizeof prefix - 1) ? text : text + sizeof prefix - 1;
    return FIRST(i, sizeof aliases / sizeof *aliases, !strcmp(name, aliases[i].theirs),
                 aliases[i].ours, text);
}

/* ------------------------------------------------------------------------- groups */

static const struct tap_preset presets[] = {
    { "residuals", "resid_pre,resid_mid,resid_final", NULL },
    { "attention", "q,k,v,q_rot,k_rot,z,attn_out", NULL },
    { "mlp", "mlp_in,mlp_post,mlp_out,router_logits,topk_ids,topk_weights", NULL },
    { "logits", "final_logits", NULL },
    { "eagle3", "resid_pre", "2,middle,last-2" },
    { "all", "*", NULL },
};

const struct tap_preset *tap_preset(const char *name)
{
    return FIRST(i, sizeof presets / sizeof *presets, !strcmp(name, presets[i].name), &presets[i],
                 NULL);
}

void tap_preset_names(char *buffer, size_t n_buffer)
{
    size_t used = 0;
    *buffer = 0;
    for (size_t i = 0; i < sizeof presets / sizeof *presets && used < n_buffer; i++)
        used += (size_t)snprintf(buffer + used, n_buffer - used, "%s%s", i ? ", " : "",
                                 presets[i].name);
}

/* ------------------------------------------------------------------------- a spec of names */

/* In single quotes YAML reads all but the quote itself as it is; a line of its own could end the entry. */
static void put_quoted(FILE *out, const char *text, size_t n)
{
    fputc('\'', out);
    for (size_t i = 0; i < n; i++)
        if (text[i] == '\'')
            fputs("''", out);
        else
            fputc(text[i] == '\n' || text[i] == '\r' ? ' ' : text[i], out);
    fputc('\'', out);
}

/* Does the name of @n bytes stand in the list before @end? */
static bool is_listed(const char *names, const char *end, const char *name, size_t n)
{
    for (const char *p = names; p < end; p += strspn(p, ", ")) {
        size_t length = strcspn(p, ", ");
        if (length == n && !strncmp(p, name, n))
            return true;
        p += length;
    }
    return false;
}

/* Is the name of @n bytes in a list of names and patterns? */
static bool is_taken(const char *names, const char *name, size_t n)
{
    char word[160], pattern[160]; /* a name has at most 128 characters */
    if (n >= sizeof word)
        return false;
    snprintf(word, sizeof word, "%.*s", (int)n, name);
    for (const char *p = names; *p; p += strspn(p, ", ")) {
        size_t length = strcspn(p, ", ");
        snprintf(pattern, sizeof pattern, "%.*s", (int)length, p);
        if (length < sizeof pattern && !fnmatch(pattern, word, 0))
            return true;
        p += length;
    }
    return false;
}

static void put_tap(FILE *out, const char *name, size_t n, const char *layers, const char *more)
{
    fputs("  - {tap: ", out);
    put_quoted(out, name, n);
    if (layers && *layers) {
        fputs(", layers: ", out);
        put_quoted(out, layers, strlen(layers));
    }
    fprintf(out, "%s}\n", more);
}

/* Each name of @list once. @writes: into which of them edits may write, NULL: all; @names: what is captured */
static void put_taps(FILE *out, const char *list, const char *writes, const char *names,
                     const char *layers)
{
    for (const char *p = list; *p; p += strspn(p, ", ")) {
        size_t n = strcspn(p, ", ");
        bool again = !n || is_listed(list, p, p, n);
        bool place = !writes || is_listed(writes, writes + strlen(writes), p, n);
        bool taken = is_taken(names, p, n);
        /* what is written is an entry of the second list */
        if (!again && (!writes || !place))
            put_tap(out, p, n, layers,
                    !place  ? ""
                    : taken ? ", write: {}"
                            : ", write: {}, capture: none");
        p += n;
    }
}

char *tap_spec(const char *names, const char *write, const char *layers)
{
    char *text = NULL;
    size_t n;
    FILE *out = open_memstream(&text, &n);
    if (!out)
        return NULL;
    names = names ? names : "";
    write = write ? write : "";
    fputs("hookspec: 1\nname: taps\nsites:\n", out);
    put_taps(out, names, write, names, layers);
    put_taps(out, write, NULL, names, layers);
    bool failed = ferror(out);
    if (fclose(out) || failed) {
        free(text);
        return NULL;
    }
    return text;
}
