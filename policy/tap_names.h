/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The names by which engines tap tensors: DMI-Lib's, TransformerLens's names for some of them, and groups of them. A tap may
 * have any other name, too. Pure functions, any thread. Source: docs/taps.md.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* DMI-Lib's names, NULL after the last one. */
extern const char *const tap_names[];
#define TAP_NAMES_MAX 32

/* What comes after a tap's name where its gradient is meant: what flows back into the tensor. */
#define TAP_GRADIENT ".grad"

/* Is it the name, or a pattern, of gradients? */
bool tap_is_gradient(const char *text);

/* May anything flow back into a tap of that name? Not into ids. */
bool tap_has_gradient(const char *name);

/* The names of gradients: of the taps of tap_names that have one, in their order; NULL after the last one. */
extern const char *const tap_gradient_names[];

/* Where attach() taps tensors that the next modules read, so that edits may write there; NULL after the last one. */
extern const char *const tap_places[];

/* Does @text name several taps, as a shell's pattern does? */
bool tap_is_pattern(const char *text);

/* DMI-Lib's name for what TransformerLens calls @text ("blocks.*.hook_resid_pre", "attn.hook_q"); else @text. */
const char *tap_canonical(const char *text);

/* A group of names, and the layers that go with it. */
struct tap_preset {
    const char *name;
    const char *taps;   /* separated by commas */
    const char *layers; /* as `layers:` takes them; NULL: all */
};

/* NULL where there is no such group. */
const struct tap_preset *tap_preset(const char *name);

/* "residuals, attention, ..." */
void tap_preset_names(char *buffer, size_t n_buffer);

/**
 * tap_spec() - the HookSpec that captures taps by their names alone
 * @names: separated by commas, each a name or a shell's pattern; NULL: none
 * @write: names of those into which edits may write, separated by commas; one that is not among @names is not captured; NULL: none
 * @layers: as `layers:` takes them, NULL: all
 * Return: its text, to be freed; NULL without memory. What is wrong in it, spec_parse() says.
 */
char *tap_spec(const char *names, const char *write, const char *layers);
