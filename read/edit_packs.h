/* SPDX-License-Identifier: Apache-2.0 */
/* The files edits-N.pack of a run: text and numbers of what was added. Not locked: the owner's thread. Source: docs/format.md 10.2. */
#pragma once

#include "policy/edit.h"
#include "storage/reader/reader.h"

struct edit_packs {
    const struct reader_run *run;
    struct spec *spec;   /* the run's HookSpec */
    struct edits **read; /* those that were asked for */
    size_t n, room;
};

/* Return: 0 or -errno with a sentence in @err. edit_packs_close() accepts what was zeroed. */
int edit_packs_open(struct err *err, const struct reader_run *run, struct edit_packs *out);
void edit_packs_close(struct edit_packs *packs);

/* The run's HookSpec; its variables do not matter here. Return: NULL with a sentence in @err. */
struct spec *edit_packs_spec(struct err *err, const struct reader_run *run);

/* The edits whose hash a note of a change has. Return: NULL with a sentence in @err. */
const struct edits *edit_packs_find(struct err *err, struct edit_packs *packs, const char *hash);

/* All bytes of a file of the run. Return: 0 or -errno. @data: free() */
int edit_packs_load(const struct reader_run *run, const char *name, void **data, size_t *n);
