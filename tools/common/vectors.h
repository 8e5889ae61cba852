/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The files that edits name: their vectors, read and put into the edits. Safetensors (f64, f32, f16, bf16) and npy (f64, f32, f16); of other
 * formats what Python writes of them. One thread. Which tensor is of which layer: docs/vectors.md.
 */
#pragma once

#include "policy/edit.h"

/**
 * vectors_edits() - the edits of a file, with the numbers of their vectors
 * @spec: whose places they are for; @command: whose Python reads files of others (python_of()); NULL: python3 of PATH
 * What is wrong stands on stderr. Return: NULL then; else edits_free().
 */
struct edits *vectors_edits(const char *path, const struct spec *spec, char *const *command);

/* The same of a text; @name names it in messages. */
struct edits *vectors_edits_of(const char *name, const char *text, size_t n_text,
                               const struct spec *spec, char *const *command);
