/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A parsed HookSpec: which tensors of which launches to take. Immutable after spec_load(), so any
 * thread may read it; loading and freeing are for one thread. Source: docs/hookspec.md.
 */
#pragma once

#include "core/err.h"
#include "policy/expr.h"
#include "policy/overload.h"
#include "policy/select.h"

#include <dmi/site.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SPEC_VERSION       1
#define SPEC_MAX_DIMS      4
#define SPEC_MAX_SITES     1024
#define SPEC_MAX_KINDS     16
#define SPEC_MAX_SELECTS   64 /* different ways to choose rows */
#define SPEC_NO_SELECT     UINT32_MAX
#define SPEC_MAX_INTERVALS 16 /* of a list of layers */
#define SPEC_MAX_RANGED    64 /* sites within NVTX ranges that a kernel may be */

enum spec_when { SPEC_AFTER = 0, SPEC_BEFORE = 1 };

/* What happens where the tensor lies in memory that another process or device writes or reads. */
enum spec_shared { SPEC_SHARED_REFUSE = 0, SPEC_SHARED_ALLOW = 1 };

/* What happens at a site, a row an action. */
enum spec_action {
    SPEC_CAPTURE = 0, /* the tensor is copied into a record */
    SPEC_EDIT = 1,    /* edits write into its rows (policy/edit.h) */
    SPEC_SAVE = 2,    /* the bank keeps rows of it, as they are before edits */
};
struct spec_action_row {
    const char *word; /* of the key `action`, and in messages */
    bool
        publishes; /* each of its launches is a record: it takes a slot of the ring, and is captured or dropped */
    bool
        edits; /* edits choose its rows: an entry with `write` makes it, no word of `action` does */
};
#define SPEC_ACTIONS(ROW)                                                                          \
    ROW([SPEC_CAPTURE] = { "capture", true, false })                                               \
    ROW([SPEC_EDIT] = { "edit", false, true })                                                     \
    ROW([SPEC_SAVE] = { "save", false, true })
extern const struct spec_action_row spec_actions[]; /* in spec_actions.c */
extern const uint32_t spec_n_actions;

#define SPEC_MAX_ACTIONS 8

/* When a site that is a place for edits is captured: around what they write. */
enum spec_captured { SPEC_CAPTURED_AFTER = 0, SPEC_CAPTURED_BEFORE = 1, SPEC_CAPTURED_NONE = 2 };

#define SPEC_MAX_PLACES      63 /* entries with `write`: a ticket names place and layer in 16 bits */
#define SPEC_MAX_PLACE_LAYER 1021 /* the highest layer in which edits write */
#define SPEC_MAX_REACH       16

#define SPEC_MAX_PARTS 64
#define SPEC_MAX_PART  1048576

/* How much of a divided dimension each rank has, in proportion. */
struct spec_parts {
    bool said;
    uint32_t n; /* ranks; 0: all have equal parts */
    uint32_t of[SPEC_MAX_PARTS];
};

/* What a site says of edits. */
struct spec_write {
    bool is;                     /* edits may write here */
    char *reach[SPEC_MAX_REACH]; /* names of sites that an edit here changes, too */
    uint32_t n_reach;
    enum spec_captured captured;
    struct expr_ref
        plus; /* a second tensor of the same shape that is only read: edits work on the sum */
    bool has_plus;
    uint32_t place; /* its number among entries with `write` */
};

/* Of which steps or forwards a site is captured: every @every-th, counted from 0. */
enum spec_steps_of { SPEC_STEPS_FORWARD = 0, SPEC_STEPS_ENGINE = 1 };
struct spec_steps {
    int64_t every;
    enum spec_steps_of
        of; /* the library's own number of the forward, or the engine's of its step */
};

/* Which of the matching kernels in a range a site takes. */
enum spec_range_kernel {
    SPEC_RANGE_ALL = 0,
    SPEC_RANGE_NTH = 1, /* the one with number @n */
};

/* What a site asks of the NVTX range in which a kernel is launched. */
struct spec_nvtx {
    char *pattern; /* of the range's name; NULL: it asks nothing */
    enum spec_range_kernel which;
    uint32_t n;      /* SPEC_RANGE_NTH: from 0 */
    bool layer;      /* the layer is the number in the range's name */
    uint16_t number; /* of the pattern, private to spec_nvtx.c */
};

/* Of which layers a tap is captured. */
struct spec_layers {
    uint32_t n; /* intervals; 0, and no word: all layers */
    struct spec_interval {
        int32_t first, last; /* inclusive */
    } at[SPEC_MAX_INTERVALS];
    uint32_t from_end; /* bit k: the one that is k before the last */
    bool middle;       /* layer n / 2 of n */
};

/* Of a row dimension: in which slots of a paged cache the rows lie. */
struct spec_slots {
    struct expr_ref pointer;   /* where among the parameters the list's address lies */
    uint32_t dtype;            /* DMI_DTYPE_I32 or I64; 0: there is no list, row i lies at i */
    struct expr *block;        /* slots a page; NULL: pages follow on each other without gaps */
    struct expr *block_stride; /* bytes from a page to the next */
};

struct spec_dim {
    struct expr *count;  /* elements along this dimension */
    struct expr *stride; /* bytes between them; where the file gives none: what "packed" comes to */
    struct spec_slots slots;
    bool is_row; /* one or two dimensions of a site; they come first in what is stored, as one */
};

struct spec_site {
    struct dmi_site about;     /* what readers learn of it; its strings belong to the spec */
    int kind;                  /* index in spec->kinds of the forwards it belongs to, -1: all */
    struct expr_ref pointer;   /* where among the launch's parameters the tensor's address lies */
    struct expr *offset;       /* bytes added to that address; NULL: 0 */
    struct spec_layers layers; /* of a tap */
    struct spec_layers only;   /* what spec_narrow() leaves of them, and of a kernel's */
    uint32_t n_dims;           /* 0: a tap says them */
    uint32_t n_row_dims;       /* 1 or 2 */
    struct spec_dim dims[SPEC_MAX_DIMS]; /* in the order in which elements are stored, rows first */
    uint32_t first_occurrence, last_occurrence; /* inclusive; those outside are not taken */
    uint32_t every_occurrence;                  /* the first, and each so many-th after it */
    struct expr *layer;                         /* from `occ`; NULL: the site has no layer */
    enum spec_when when;
    enum spec_action action;
    struct spec_parts parts; /* of about.shard_dim, where ranks have unequal ones */
    struct spec_write write;
    enum spec_shared shared_memory;
    struct select choice; /* while it is read; then in spec->selects */
    uint32_t select;      /* index there, SPEC_NO_SELECT: rows have no token */
    struct spec_steps steps;
    struct spec_nvtx nvtx;
    int line; /* of the entry, for messages */
};

/* Does the site's action publish records? Any thread, for the hot path. */
static inline bool spec_publishes(const struct spec_site *site)
{
    return spec_actions[site->action].publishes;
}

/* Do edits choose its rows? Any thread. */
static inline bool spec_is_place(const struct spec_site *site)
{
    return spec_actions[site->action].edits;
}

/* Is it a place for edits next to another site of its entry, which says the entry's problems? */
static inline bool spec_is_second(const struct spec_site *site)
{
    return site->action == SPEC_SAVE ||
           (site->action == SPEC_EDIT && site->write.captured != SPEC_CAPTURED_NONE);
}

/* Is it one of those that the site takes? Any thread, for the hot path. */
static inline bool spec_takes_occurrence(const struct spec_site *site, uint32_t occ)
{
    return occ >= site->first_occurrence && occ <= site->last_occurrence &&
           (site->every_occurrence == 1 ||
            (occ - site->first_occurrence) % site->every_occurrence == 0);
}

/*
 * What a site may say, a row a key, read in this order: a row may use what those before it have left.
 *   KEY(name, required, reader, field, what the reader wants to know)  the function value_READER of spec_values.c fills the field
 *   PART(name, required, reader)                                       the function site_READER of spec_site.c sees all of the site
 * First what is wanted of a tensor, however it is found.
 */
#define SPEC_WANTED_KEYS(KEY, PART)                                                                \
    KEY("action", false, action, action, NULL)                                                     \
    KEY("shared_memory", false, word, shared_memory,                                               \
        WORDS([SPEC_SHARED_REFUSE] = "refuse", [SPEC_SHARED_ALLOW] = "allow"))                     \
    KEY("row", false, row, about.row, NULL)                                                        \
    PART("tokens", false, tokens)                                                                  \
    PART("requests", false, requests)                                                              \
    PART("steps", false, steps)                                                                    \
    KEY("scale", false, scale, about.scale, NULL)                                                  \
    KEY("note", false, string, about.note, NULL)

/* A site that is found by a kernel, a range, or both. */
#define SPEC_SITE_KEYS(KEY, PART)                                                                  \
    KEY("name", true, layered_name, about.name, NULL)                                              \
    KEY("forward", false, kind, kind, NULL)                                                        \
    PART("kernel", false, kernel)                                                                  \
    PART("nvtx", false, nvtx)                                                                      \
    PART("range_kernel", false, range_kernel)                                                      \
    KEY("pointer", true, place, pointer, NULL)                                                     \
    KEY("offset", false, expr, offset, NULL)                                                       \
    KEY("dtype", true, dtype, about.dtype, NULL)                                                   \
    PART("dims", true, dims)                                                                       \
    PART("shard", false, shard)                                                                    \
    PART("occurrences", false, occurrences)                                                        \
    PART("layer", false, layer)                                                                    \
    KEY("when", false, word, when, WORDS([SPEC_AFTER] = "after", [SPEC_BEFORE] = "before"))        \
    PART("write", false, write)                                                                    \
    PART("plus", false, plus)                                                                      \
    PART("capture", false, capture)                                                                \
    SPEC_WANTED_KEYS(KEY, PART)

/* A site that is a tap, which says the rest itself. */
#define SPEC_TAP_KEYS(KEY, PART)                                                                   \
    PART("tap", true, tap)                                                                         \
    PART("name", false, name_of_tap)                                                               \
    KEY("forward", false, kind, kind, NULL)                                                        \
    PART("layers", false, layers)                                                                  \
    PART("shard", false, shard)                                                                    \
    PART("write", false, write)                                                                    \
    PART("capture", false, capture)                                                                \
    SPEC_WANTED_KEYS(KEY, PART)

/* A way in which a forward begins; occurrences count from there. */
struct spec_kind {
    char *name;           /* "decode" */
    char *kernel;         /* regex of the kernel that begins it; NULL: there is none */
    char *nvtx;           /* pattern of the NVTX range that begins it; NULL: there is none */
    uint16_t nvtx_number; /* of that pattern, private to spec_nvtx.c */
};

/* Does dmi_step_begin() begin it? */
static inline bool spec_kind_is_step(const struct spec_kind *kind)
{
    return !kind->kernel && !kind->nvtx;
}

/* A tensor that this engine never has in memory, and why. */
struct spec_absent {
    char *name;
    char *why;
    int kind; /* index in spec->kinds of the forwards that lack it, -1: all */
};

struct spec_pair {
    char *key;
    char *value;
};

/* Everything that the parser found wrong, each a line "FILE:LINE:COLUMN: found, expected, mend". */
struct spec_errors {
    char **lines;
    size_t n_lines;
};

struct spec {
    char *path;
    char *text; /* the file as it was read, NUL-terminated */
    size_t n_text;
    char *name;
    char *model;
    struct spec_pair *conventions; /* "layer_base": "0", ... for people and manifests */
    size_t n_conventions;
    struct spec_pair *vars; /* after -D: decimal values */
    size_t n_vars;
    struct spec_kind kinds[SPEC_MAX_KINDS];
    uint32_t n_kinds;
    struct spec_site *sites;
    uint32_t n_sites;
    bool has_kernels, has_taps;              /* sites that are found by the one or the other */
    uint32_t n_places;                       /* entries with `write` */
    struct select selects[SPEC_MAX_SELECTS]; /* those that sites have, each once */
    uint32_t n_selects;
    struct spec_absent *absent;
    size_t n_absent;
    uint64_t ring_bytes; /* 0: not said */
    uint32_t ring_slots; /* 0: not said */
    uint64_t keep_free;  /* bytes of device memory that copies in graphs leave alone */
    bool keep_free_said;
    uint64_t edit_bytes; /* of device memory for edits; 0: not said */
    uint64_t bank_bytes; /* the same for rows that edits save; 0: there is no bank */
    struct overload overload;
    struct spec_errors warnings; /* what is right, and seldom meant */
    void *regexes;               /* compiled, private to spec_match.c */
};

#define SPEC_MAX_BYTES (1u << 20) /* of a file */
#define SPEC_MAX_VARS  256

enum { SPEC_E_INVALID = 1 };

/**
 * spec_load() - read, check and compile a HookSpec
 * @vars: "NAME=VALUE" strings that override the file's vars:, as from dmi-run -D or DMI_VARS
 * @errors: takes all errors that can be seen in one go; free with spec_errors_deinit(), also after
 *          success
 * @out: the spec, to be freed with spec_free(); untouched on failure
 *
 * Return: 0, -errno (cannot read), or SPEC_E_INVALID with at least one line in @errors.
 */
int spec_load(const char *path, const char *const *vars, size_t n_vars, struct spec_errors *errors,
              struct spec **out);

/* As spec_load() from memory; @path only names the text in messages. */
int spec_parse(const char *path, const char *text, size_t n_text, const char *const *vars,
               size_t n_vars, struct spec_errors *errors, struct spec **out);

/**
 * spec_split_vars() - "a=1,b=2" (DMI_VARS) to the strings that spec_load() takes
 * @text: commas in it become NULs; empty entries are skipped
 * @max: entries of @out
 * Return: how many; SIZE_MAX if there are more than @max.
 */
size_t spec_split_vars(char *text, const char **out, size_t max);

/**
 * overload_parse() - another `overload` for the sites of a spec
 * @name: of the text, for messages; @text: the mapping alone, such as "{mode: drop}"
 * @errors: as of spec_load()
 * Return: 0, SPEC_E_INVALID, -ENOMEM. @out: to be freed with overload_free().
 */
int overload_parse(const char *name, const char *text, size_t n_text, const struct spec *spec,
                   struct spec_errors *errors, struct overload **out);

/* NULL is fine. */
void overload_free(struct overload *overload);

/* Frees all that a spec holds; NULL is fine. */
void spec_free(struct spec *spec);

/* What its `convention` says of @key; NULL: nothing. Borrowed. */
const char *spec_convention(const struct spec *spec, const char *key);

/* May what a site reads depend on the occurrence? Also of one that was read only in part. */
bool spec_uses_occurrence(const struct spec_site *site);

/* The same, or does its layer (if @layer), or whether it is taken at all? Pure function: any thread. */
bool spec_needs_occurrence(const struct spec_site *site, bool layer);

/* Does its layer, or what it reads, hang on the occurrence? Without forwards these grow as long as the run. Pure function: any thread. */
bool spec_counts_layers(const struct spec_site *site);

/* Frees the lines, and leaves none. */
void spec_errors_deinit(struct spec_errors *errors);

#define SPEC_MAX_MATCHES 16

/* What a kernel's name means to a spec. */
struct spec_match {
    int kind;         /* forward that this kernel begins, -1: none */
    uint32_t n_sites; /* sites whose pattern matches, in spec order, whatever their kind */
    uint32_t sites[SPEC_MAX_MATCHES];
    uint32_t n_ranged; /* sites that such a kernel may be within an NVTX range, in spec order */
    uint16_t ranged[SPEC_MAX_RANGED];
};

/**
 * spec_match_kernel() - what is to be done at launches of a kernel
 * @name: raw name; @demangled: NULL where there is none
 *
 * Not for the hot path: the caller caches the result per function handle.
 * Return: true if the kernel begins a forward or is a site, if only within a range. spec_load() refuses what it can
 * see to give one kernel more than SPEC_MAX_MATCHES sites; of those it cannot see, the first count.
 */
bool spec_match_kernel(const struct spec *spec, const char *name, const char *demangled,
                       struct spec_match *match);

/* Can edits write elements of the type? */
bool spec_edits_dtype(uint32_t dtype);

/* The same for a tap: sites whose tap has this name. Cheap enough for each call. Return: true if there is one. */
bool spec_match_tap(const struct spec *spec, const char *name, struct spec_match *match);

/**
 * spec_takes_layer() - is a tap's layer one of those that its site captures?
 * A tap that belongs to no layer (-1) is.
 * @n_layers: of the model, 0: not known; then neither "last" nor "middle" is any layer
 * Pure function, any thread.
 */
bool spec_takes_layer(const struct spec_layers *layers, int32_t layer, int32_t n_layers);

/* Is it one that the site captures? @n_layers: as of spec_takes_layer(). */
static inline bool spec_site_takes_layer(const struct spec_site *site, int32_t layer,
                                         int32_t n_layers)
{
    return spec_takes_layer(&site->layers, layer, n_layers) &&
           spec_takes_layer(&site->only, layer, n_layers);
}

/**
 * spec_narrow() - leave of the sites that are captured some, in some of their layers
 * @sites: names, or a shell's patterns, separated by commas; NULL: all. Each word must fit one
 * @layers: as `layers:` takes them; NULL: all. Sites without a layer stay
 * Places for edits stay, too. Before the spec is used. Return: 0; -EINVAL, -ENOMEM with a sentence in @err; what is left is then undefined.
 */
int spec_narrow(struct err *err, struct spec *spec, const char *sites, const char *layers);

/* Do ranks have parts, or summands, of both in the same way? */
bool spec_same_shard(const struct dmi_site *a, const struct dmi_site *b);

/* Does the list need to know how many layers the model has? */
static inline bool spec_needs_n_layers(const struct spec_layers *layers)
{
    return layers->from_end || layers->middle;
}

/* What the name of an NVTX range means to a spec. */
struct spec_range_match {
    int kind;         /* forward that such a range begins, -1: none */
    uint32_t n_sites; /* sites whose `nvtx` matches, in spec order */
    uint16_t sites[SPEC_MAX_SITES];
};

/* Does the spec name any NVTX range? */
bool spec_has_nvtx(const struct spec *spec);

/**
 * spec_match_range() - what is to be done in ranges of this name
 * @name: as range_name_parse() gives it
 * Not for the hot path. Return: true if the range begins a forward or has sites.
 */
bool spec_match_range(const struct spec *spec, const char *name, struct spec_range_match *match);
