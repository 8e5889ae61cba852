/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Edits: what is written into the places of a HookSpec, for which requests and tokens. Immutable once read. Source: docs/edits.md.
 *
 *   text -> edits_parse() -> numbers of its vectors -> edits_pack() -> one file, which the library reads -> edits_unpack()
 *        -> edit_table_build() for the device, edit_rows_build() for each step
 */
#pragma once

#include "policy/select.h"
#include "policy/spec.h"

#include <dmi/edit.h>
#include <dmi/edit_account.h>

#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EDITS_VERSION     1
#define EDITS_MAX         256
#define EDITS_MAX_BYTES   (1u << 20) /* of a text */
#define EDITS_MAX_VECTORS 1024
#define EDITS_MAX_NUMBERS (1u << 30) /* of all vectors together */
#define EDIT_MAX_NAME     127
#define EDIT_MAX_POINTS   16
#define EDIT_MAX_COLUMNS  65536

#define EDIT_NO_VECTOR UINT32_MAX
#define EDIT_ANY_LAYER (-1)

/* Where a coefficient comes from. */
enum edit_times { EDIT_NUMBER = 0, EDIT_POINTS = 1, EDIT_TAG = 2 };

struct edit_coefficient {
    enum edit_times from;
    float number;
    uint32_t n_points; /* EDIT_POINTS: linear between them, by generated token; ascending */
    struct edit_point {
        int64_t token;
        float value;
    } points[EDIT_MAX_POINTS];
    char *tag; /* EDIT_TAG: of the request, whose value is a number */
};

struct edit_op {
    uint32_t kind;    /* DMI_EDIT_* */
    uint32_t vector;  /* index in edits->vectors, EDIT_NO_VECTOR */
    uint32_t encoder; /* likewise; of a feature */
    float a, b;       /* as of struct dmi_edit_op */
    char *bank;       /* under which name rows are saved or, of a patch, taken; NULL: no bank */
    bool keep;        /* of a save: the rows stay when their request ends */
    struct edit_coefficient times;
};

struct edit {
    char *name;
    char *site;
    struct spec_layers layers; /* numbers alone; none: those that its vectors have, or all */
    struct edit_op ops[DMI_EDIT_MAX_OPS];
    uint32_t n_ops;
    struct select who; /* requests and tokens */
    bool any_cache;    /* `cache: ignore` */
    bool live;         /* follows changes in the middle of a request */
    bool aborts;       /* `on_miss: abort` */
    bool partial; /* `partial: allow`: graphs in which nothing can be written stay as they are */
    uint32_t *columns; /* or heads, ascending */
    uint32_t n_columns;
    bool of_heads;
    uint32_t pass; /* DMI_EDIT_PASS() of its layers in which it is done; 0: each */
    uint32_t line; /* of its entry, for messages */
};

/* Numbers of a vector in a layer. */
struct edit_numbers {
    uint32_t vector;
    int32_t layer; /* EDIT_ANY_LAYER: in each */
    uint64_t first, n;
};

struct edit_vector {
    char *name;
    char *file;                 /* NULL: it is rows of a run */
    char *tensor;               /* "{layer}" may stand in it; NULL: the only one of the file */
    char *layer_is;             /* the site whose layers its layers are; NULL: not known */
    char *run, *request, *site; /* of the donor */
    int64_t first;              /* its first position there; below 0: from the end of the prompt */
    uint32_t n_rows;            /* that lie one after the other in its numbers; 0: one vector */
    bool unit;                  /* `norm: unit`: brought to length 1 */
    uint32_t line;
};

struct edits {
    char *path; /* that messages name */
    char *text;
    size_t n_text;
    struct edit *list; /* in the order of the file */
    uint32_t n;
    struct edit_vector *vectors;
    uint32_t n_vectors;
    struct edit_numbers *tensors; /* by vector, then layer */
    uint32_t n_tensors;
    float *numbers; /* as the files have them: a table has those of length 1 */
    uint64_t n_numbers;
    uint64_t hash; /* of text and numbers */
};

/**
 * edits_parse() - read and check the text of edits
 * @path: names it in messages
 * @spec: whose places they are for
 * @errors: as of spec_load()
 * Return: 0, SPEC_E_INVALID, -ENOMEM. @out: to be freed with edits_free(); its vectors have no numbers yet.
 */
int edits_parse(const char *path, const char *text, size_t n_text, const struct spec *spec,
                struct spec_errors *errors, struct edits **out);

/* Accepts NULL. */
void edits_free(struct edits *edits);

/* How many rows lie in its numbers, of one layer. */
static inline uint32_t edit_vector_rows(const struct edit_vector *vector)
{
    return vector->n_rows ? vector->n_rows : 1;
}

/* ------------------------------------------------------------------------- vectors; edit_file.c */

/**
 * edits_add_numbers() - numbers of a vector, in a layer or EDIT_ANY_LAYER
 * To be called in the order of vectors and layers. Return: 0; -EINVAL: some are not finite, the vector is to have length 1 and is 0, or
 * its rows are not all as long;
 * -E2BIG, -ENOMEM.
 */
int edits_add_numbers(struct edits *edits, uint32_t vector, int32_t layer, const float *numbers,
                      uint64_t n);

/* Of a vector, as a direction is brought to length 1. */
double edits_length(const float *numbers, uint64_t n);

/* The numbers of a vector in a layer, NULL: it has none there. */
const struct edit_numbers *edits_numbers(const struct edits *edits, uint32_t vector, int32_t layer);

/* What no file can mend: a vector lacks a layer that its edit names. Return: 0, SPEC_E_INVALID, -ENOMEM. */
int edits_check_layers(const struct edits *edits, struct spec_errors *errors);

/* A vector of one site in an edit of another. Return: 0, SPEC_E_INVALID, -ENOMEM. */
int edits_check_sites(const struct edits *edits, struct spec_errors *errors);

/* Vectors of other widths than @spec says of their edits' sites. For tools: a launch may say another. Return: as above. */
int edits_check_widths(const struct edits *edits, const struct spec *spec,
                       struct spec_errors *errors);

/* Are both names of DMI's for tensors, and different ones? Other names are a HookSpec's own, and may mean the same. */
bool edits_sites_differ(const char *a, const char *b);

/* Text and numbers as one block of bytes, which edits_unpack() takes. Return: 0 or -ENOMEM. @out: free(). */
int edits_pack(const struct edits *edits, void **out, size_t *n);

/* Return: as edits_parse(). */
int edits_unpack(const char *path, const void *data, size_t n, const struct spec *spec,
                 struct spec_errors *errors, struct edits **out);

/* ------------------------------------------------------------------------- in force */

/* An edit as it is in force: of which text, and what was changed of it since. */
struct edit_use {
    const struct edits *of;
    const struct edit *edit;
    uint64_t uid; /* of the edit, in the process */
    bool off;
    bool
        everywhere; /* edit_is_constant(), and in force since before the first step: cached rows have it, and no salt tells of it */
    struct edit_coefficient
        *times; /* in place of each that its operations have; NULL: as they are. Without a tag */
};

/* Does the edit write in the layer (-1: none)? It needs a vector there, where its operations have one. */
bool edit_takes_layer(const struct edit_use *use, int32_t layer);

/* Does what the edit does in a request depend on the request's tags? */
bool edit_asks_tags(const struct edit_use *use);

struct tree;

/*
 * The coefficient of operation @op at a token, numbered from the first that is generated. @tags: of the request, parsed. Return: false:
 * they have no such number.
 */
bool edit_times_at(const struct edit_use *use, uint32_t op, const struct tree *tags, int64_t token,
                   float *out);

/* The name of the bank's rows that the edit saves, or takes; NULL: none. */
const char *edit_saves(const struct edit *edit);
const char *edit_takes(const struct edit *edit);

/* Has the operation a coefficient that may be changed? */
bool edit_op_has_times(const struct edit_op *op);

/* How the library begins what it reports of an edit among the problems of a run, and dmi-run finds it there. */
#define EDIT_PROBLEM "the edit \"%s\": "

/*
 * Does it do the same in each row of each request? Then cached rows of any prefix have what it writes, as long as it was in force when
 * they were computed and does not change.
 */
bool edit_is_constant(const struct edit *edit, const struct edits *of);

#define EDIT_SALT_FORMAT "dmi-%016" PRIx64 /* as requests have it, of edits_salt() */

/* Whose rows of the bank the request takes under a name, as a number: other rows have another one. 0: nobody's. */
struct edit_sources {
    uint64_t (*of)(void *arg, const char *bank);
    void *arg;
};

/*
 * What tells requests apart whose keys and values differ, as edits wrote into them: a number of the edits that want the request, with
 * all that they do, and of whose rows they take. 0: none does. @tags: as of select_request()
 */
uint64_t edits_salt(const struct edit_use *uses, uint32_t n, const char *id, const char *tags,
                    const struct edit_sources *sources);

/* The same of all that they write in the request, also by edits with `cache: ignore`, and by those that are everywhere. */
uint64_t edits_effect(const struct edit_use *uses, uint32_t n, const char *id, const char *tags);

/* ------------------------------------------------------------------------- for the device; edit_table.c */

/* A table as kernels read it; it may be copied to any address that DMI_EDIT_ALIGN divides. */
struct edit_table {
    void *bytes;
    size_t n;
    uint32_t n_places;
    uint32_t n_layers;
};

/* Return: 0, -E2BIG (more than 4 GiB), -ENOMEM. @out: edit_table_deinit(). Edits have the numbers of their uses. */
int edit_table_build(const struct edit_use *uses, uint32_t n, const struct spec *spec,
                     struct edit_table *out);

/* Accepts what was zeroed. */
void edit_table_deinit(struct edit_table *table);

/* The parts of a place (its number) in a layer, -1: none. Any thread. */
const struct dmi_edit_part *edit_table_parts(const struct edit_table *table, uint32_t place,
                                             int32_t layer, uint32_t *n);

/* How it takes rows of the shape, of which @cut is here. As kernels/edit.cu finds it. */
struct dmi_edit_fit edit_part_fit(const struct edit_table *table, const struct dmi_edit_part *part,
                                  struct dmi_edit_shape row, struct dmi_edit_cut cut);

/* ------------------------------------------------------------------------- ranks; edit_ranks.c */

/* Which of the ranks a process is, by enum dmi_axis. Sizes of 0 and 1 mean the same. */
struct edit_ranks {
    int32_t rank[DMI_AXIS_COUNT], size[DMI_AXIS_COUNT];
};

/* What the engine says of them with the step. */
struct edit_ranks edit_ranks_of(const struct dmi_step *step);

/* Undivided. */
#define EDIT_WHOLE ((struct dmi_edit_cut){ 0, 1, 1 })

/* What a rank does of an edit. */
enum edit_by_rank {
    EDIT_RANK_WRITES,
    EDIT_RANK_LEAVES, /* to another one, which does it for all */
    EDIT_RANK_CANNOT,
};

/**
 * edit_by_rank() - what a rank does of an edit, as the HookSpec says how ranks divide its place
 * @ranks: NULL: the engine has not said which rank this is
 * @cut: the rank's part of each row; EDIT_WHOLE but for EDIT_RANK_WRITES
 * @why: a sentence where it cannot, cut to @n bytes; NULL: none is wanted
 * Pure. Any thread. Source: docs/edits.md, "Several ranks"
 */
enum edit_by_rank edit_by_rank(const struct edit *edit, const struct spec *spec,
                               const struct edit_ranks *ranks, struct dmi_edit_cut *cut, char *why,
                               size_t n);

/* ------------------------------------------------------------------------- for a step; edit_rows.c */

#define EDIT_NO_MISS (-1)

/* Uses of one table, in its order. */
struct edit_section {
    const struct edit_use *uses;
    uint32_t n;
    uint32_t table;     /* offset of the table, in units of DMI_EDIT_ALIGN */
    const void *owner;  /* for whoever asks */
    bool live, settled; /* which of them count: those that follow changes, and those that do not */
};

#define EDIT_MAX_SECTIONS 2

/* Rows of one request that one edit wants in a step. Those with a reason have no pair. */
struct edit_share {
    const void *owner; /* of its section */
    uint32_t edit;
    uint32_t counter; /* of the edit in the request */
    int miss;         /* enum dmi_edit_miss, EDIT_NO_MISS */
    struct dmi_edit_cut cut;
    uint32_t n_rows;
    uint32_t n_generated; /* of a patch at 'A:B': rows that are none of the prompt */
};

/* Which rows of a step are written and by what, as the words of <dmi/edit.h>. */
struct edit_rows {
    uint32_t *words;
    uint32_t n_words;
    uint32_t n_rows;           /* pairs */
    bool every;                /* all rows of any tensor: there is no pair */
    struct edit_share *shares; /* by owner, ascending by edit */
    uint32_t n_shares;
};

/* What edit_rows_build() does not know. Of a span; NULL: of rows whose request is not known. */
struct edit_rows_ask {
    const struct spec *spec; /* whose places they are for */
    /* the edits that are in force for it. Return: how many sections */
    uint32_t (*sections)(void *arg, const struct dmi_span *span,
                         struct edit_section out[EDIT_MAX_SECTIONS]);
    /* the counter of an edit in it. *@miss, EDIT_NO_MISS before: its rows are missed, whatever it says */
    uint32_t (*counter)(void *arg, const struct edit_use *use, const struct dmi_span *span,
                        int *miss);
    /* whose rows of the bank an edit that saves some, or takes some, has. *@miss as of counter() */
    uint32_t (*donor)(void *arg, const struct edit_use *use, const struct dmi_span *span,
                      uint32_t counter, int *miss);
    /* do rows that it has from a prefix cache have the edit already? */
    bool (*has_cached)(void *arg, const struct edit_use *use, const struct dmi_span *span);
    void *arg;
};

/**
 * edit_rows_build() - what edits write in a step
 * @step: as dmi_step_begin() takes it: checked. Rows of padding are never written
 * Return: 0 or -ENOMEM. @out: edit_rows_deinit(). Pure but for the calls of @ask. Any thread.
 */
int edit_rows_build(const struct dmi_step *step, const struct edit_rows_ask *ask,
                    struct edit_rows *out);

/*
 * The same where the engine says no steps: every row of any tensor, by the edits that want all requests and tokens. What others
 * want is not known: they have shares without rows, missed as DMI_EDIT_MISS_NO_STEP.
 */
int edit_rows_build_every(const struct edit_rows_ask *ask, struct edit_rows *out);

/* Accepts what was zeroed. */
void edit_rows_deinit(struct edit_rows *rows);

/* Pairs whose rows are below @n_rows. */
uint32_t edit_rows_below(const struct edit_rows *rows, uint32_t n_rows);
