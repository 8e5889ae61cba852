/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files share that turn a tree of YAML nodes into a struct spec; nobody else includes it. A mapping is read by
 * a table of keys. What does not fit is reported with its place and reading goes on, so that one run shows all errors.
 * A loader belongs to one thread.
 */
#pragma once

#include "policy/interval.h"
#include "policy/number.h"
#include "policy/pattern.h"
#include "policy/report.h"
#include "policy/spec.h"
#include "policy/tap_names.h"
#include "policy/tree.h"

#include <assert.h>

#define N_OF(array) (sizeof(array) / sizeof *(array))

struct loader {
    struct spec *spec; /* what is being filled in; dropped if anything is reported */
    struct text_report report, warnings;
    struct expr_var vars[SPEC_MAX_VARS]; /* names borrowed from the tree */
    size_t n_vars;
    size_t pattern_room; /* for pattern_compile() */
    /* of the site under way: the taps that its entry stands for, and which of them it is */
    const char *taps[TAP_NAMES_MAX];
    size_t n_taps, tap;
    uint32_t reading; /* enum spec_action: what the entry under way is read as */
    bool no_memory;
};

/* ------------------------------------------------------------------- spec_keys.c: reading by keys */

/* Reports @fmt at @node. */
void loader_complain(struct loader *l, const struct tree_node *node, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* The same of what is right, and seldom meant. */
void loader_warn(struct loader *l, const struct tree_node *node, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* As loader_complain(), about the byte @offset of a scalar. */
void loader_complain_inside(struct loader *l, const struct tree_node *node, size_t offset,
                            const char *what);

/* Notes that memory is short, so that loading fails with -ENOMEM. Return: false. */
bool loader_no_memory(struct loader *l);

/* What becomes of a document's root; it reports what is wrong. */
typedef void root_reader(struct loader *l, const struct tree_node *root, const void *arg);

/**
 * loader_read() - a text of YAML
 * @l: zeroed, but for its spec and the report's path; not to be used again
 * @wanted: what a text without anything in it should have been
 * Return: 0; SPEC_E_INVALID, with at least one line in @errors; -ENOMEM.
 */
int loader_read(struct loader *l, const char *text, size_t n_text, const char *wanted,
                root_reader *read, const void *arg, struct spec_errors *errors);

/* true for an empty value, `~` and `null` */
bool node_is_nothing(const struct tree_node *node);

/* What a node is, in words, for messages. Return: @buffer. */
const char *node_found(const struct tree_node *node, char *buffer, size_t n);

/* "name, kernel, pointer" */
void names_join(const char *const *names, size_t n, char *buffer, size_t n_buffer);

/* Reads @node to what lies at @into. Return: true if it fits; reports otherwise. */
typedef bool key_reader(struct loader *l, const struct tree_node *node, void *into,
                        const void *arg);

/* A key that a mapping may have. */
struct key {
    const char *name;
    bool required;
    key_reader *read; /* NULL: somebody else reads it */
    size_t at;        /* where in the object what @read fills in lies, in bytes */
    const void *arg;  /* what else @read wants to know, a struct value_bounds or struct words */
};

#define KEYS_MAX 24 /* of a table */

/**
 * keys_read() - read a mapping to the object that it describes, the keys in the table's order
 * @what: "a site", for messages
 * Return: true if it is a mapping that has all required keys, and all values fit; what does not is reported,
 * and so are unknown keys.
 */
bool keys_read(struct loader *l, const struct tree_node *node, const char *what,
               const struct key *keys, size_t n_keys, void *object);

/* The value of a mapping's key; NULL if it has none. */
const struct tree_node *keys_value(const struct tree_node *node, const char *name);

/* Return: true if @node is a list of at most @max entries; reports otherwise. */
bool keys_list(struct loader *l, const struct tree_node *node, const char *what, size_t max);

/* --------------------------------------------------------------------- spec_values.c: scalars */

struct value_bounds {
    int64_t min, max;
};
#define RANGE(min, max) (&(const struct value_bounds){ min, max })

#define WORDS_MAX 8
struct words {
    const char *names[WORDS_MAX]; /* NULL after the last one */
};
#define WORDS(...) (&(const struct words){ { __VA_ARGS__ } })

/* Return: true if @node is a text that is not empty; reports otherwise that @what was expected. */
bool value_nonempty(struct loader *l, const struct tree_node *node, const char *what);

/* true for what names consist of: letters, digits, _ - . */
bool is_name_character(char c);

#define NAME_MAX_BYTES 128

/* Each a key_reader; named beside it: what lies at @into, and what @arg is (else it is not looked at). */
key_reader value_integer;      /* int64_t; struct value_bounds */
key_reader value_size;         /* uint64_t; struct value_bounds. K, M or G may follow the number */
key_reader value_bool;         /* bool */
key_reader value_word;         /* enum or uint32_t; struct words, of which it becomes the index */
key_reader value_string;       /* char *, which becomes the object's */
key_reader value_name;         /* the same; of characters that suit keys and names of files */
key_reader value_layered_name; /* the same; "{layer}" may stand in it, once */
key_reader value_scale;        /* double */
key_reader value_dtype;        /* uint32_t: enum dmi_dtype */
key_reader value_action;       /* enum spec_action */
key_reader value_row;          /* uint32_t: enum dmi_row */
key_reader value_expr;     /* struct expr *; struct value_bounds of constants, NULL: any value */
key_reader value_place;    /* struct expr_ref */
key_reader value_kind;     /* int: index of the kind of forward that is named */
key_reader value_requests; /* struct select, of which it becomes the pattern of requests */
key_reader value_tokens;   /* struct select, of which it becomes the positions */
key_reader value_layers;   /* struct spec_layers */
/* Adds a word of a list of layers. Return: false: it is none, or one too many. */
bool layers_add_word(struct spec_layers *layers, const char *text, size_t n);

/* ------------------------------------------------ spec_sections.c, spec_site.c, spec_shard.c: parts */

/**
 * section_vars() - declare the variables, with what is set from outside
 * @node: of vars:, NULL if it is missing; @vars: "NAME=VALUE", the last of several counts
 */
void section_vars(struct loader *l, const struct tree_node *node, const char *const *vars,
                  size_t n_vars);

/* Each a key_reader; @into is the struct spec. */
key_reader section_convention, section_ring, section_edits, section_overload, section_forward;
key_reader section_absent;
key_reader section_sites;

/* ------------------------------------------------------------------ spec_overload.c */

/* What holds where the file says nothing. */
void overload_init(struct overload *overload);

/* Frees what it owns, and leaves what holds where the file says nothing. */
void overload_deinit(struct overload *overload);

/* Which sites each budget is for, once all are read. @node: the section; NULL: there is none. */
void overload_settle(struct loader *l, const struct tree_node *node);

/* ------------------------------------------------------------------ spec_select.c: which rows of a site */

/* Each a key_reader; @into is the struct spec_site. */
key_reader site_tokens, site_requests, site_steps;

/* The choice that a site's keys made becomes one of the spec's. After all keys were read. */
void select_settle(struct loader *l, const struct tree_node *node, struct spec_site *site);

/* Frees the choices of the spec and of its sites. */
void selects_free(struct spec *spec);

/* A key_reader; @into is the struct spec_site, whose dimensions are known, but for a tap. */
key_reader site_shard;

/* ------------------------------------------------------------------ spec_write.c: places for edits */

/* Each a key_reader; @into is the struct spec_site. */
key_reader site_write, site_plus, site_capture;

#define WRITE_READINGS 3

/* As what the entry is read, each enum spec_action, in the order in which they come at a launch. Return: how often. */
size_t write_readings(const struct spec *spec, const struct tree_node *node,
                      uint32_t as[WRITE_READINGS]);

/* After all keys were read: the site is a place for edits, if it is read as one, and can be one. */
void write_settle(struct loader *l, const struct tree_node *node, struct spec_site *site);

/* Once all sites are read: what the places name is there. @list: of the sites. */
void write_check(struct loader *l, const struct tree_node *list);

/* Frees what the site says of edits. */
void write_deinit(struct spec_write *write);
/* Frees what a site owns. */
void spec_site_deinit(struct spec_site *site);

/* --------------------------------------------------------------------------- spec_tap.c: taps */

/* Each a key_reader; @into is the struct spec_site. */
key_reader site_tap, site_name_of_tap, site_layers;

/**
 * taps_of() - the taps that an entry of sites: stands for; of a pattern those that no other entry names by itself
 * @node: the entry; @list: all of them
 * Return: false if it has no tap:, or none that could be one.
 */
bool taps_of(const struct tree_node *list, const struct tree_node *node,
             const char *names[TAP_NAMES_MAX], size_t *n);

/* ----------------------------------------------------------- spec_check.c: what must fit together */

/* The site last read against those before it: no two may store the same key for one launch. */
void check_site_is_new(struct loader *l, const struct tree_node *node);

/* Do they take launches of the same kernels, as far as patterns say it? */
bool same_kernels(const struct spec_site *a, const struct spec_site *b);

/* May a tap have a layer that both take? */
bool layers_meet(const struct spec_layers *a, const struct spec_layers *b);

/* Where the site stands in the file: an entry may be several sites. @list: of the sites. */
const struct tree_node *entry_of(const struct tree_node *list, const struct spec_site *site);

/* No kernel that the patterns name may have more sites than a match holds. @list: of the sites. */
void check_crowd(struct loader *l, const struct tree_node *list);

/* Warns where layers are counted within a forward, and nothing says where one begins. @list: of the sites. */
void check_counted_layers(struct loader *l, const struct tree_node *list);

/* ---------------------------------------------- spec_alike.c: what sites of one name must agree in */

/* Warns of those that mean values differently, and refuses those of which no reader can make a tensor. @list: of the sites. */
void check_alike(struct loader *l, const struct tree_node *list);

/* Nothing is absent that a site captures. @node: the mapping that says so. */
void check_absent(struct loader *l, const struct tree_node *node, const struct spec_absent *absent);

/* ------------------------------------------------------------ spec_nvtx.c: NVTX ranges */

/* Each a key_reader; @into is the struct spec_site. */
key_reader site_nvtx, site_range_kernel;
/* A key_reader; @into is the struct spec_kind. */
key_reader begin_nvtx;

/* `layer: range`. Return: false where @node says something else. */
bool nvtx_layer(const struct tree_node *node, struct spec_site *site);

/* After all keys of the site were read: a kernel, a range or both name it, and what it says of ranges fits together. */
void nvtx_settle(struct loader *l, const struct tree_node *node, const struct spec_site *site);

/* The same of `begin`: either a kernel or a range. */
bool nvtx_settle_begin(struct loader *l, const struct tree_node *node);

/* Frees the patterns of the spec's ranges, and what sites and kinds have of them. */
void nvtx_free(struct spec *spec);

/* -------------------------------------------------------------- spec_match.c: patterns of kernels */

/* Instead of a pattern's index, in of_kind: */
#define NO_PATTERN       UINT16_MAX
#define BEGINS_WITH_STEP (UINT16_MAX - 1)

/* spec->regexes. Patterns that several sites share are compiled and matched once. */
struct regexes {
    struct pattern *patterns;
    size_t n;
    uint16_t of_site[SPEC_MAX_SITES]; /* NO_PATTERN: any kernel, in a range */
    uint16_t of_kind[SPEC_MAX_KINDS];
    /* of names of NVTX ranges, by spec_nvtx.c */
    struct pattern *ranges;
    size_t n_ranges;
};

/* Return: an empty set of patterns, to be freed with regexes_free(); NULL without memory. */
struct regexes *regexes_new(void);

/* NULL is fine. */
void regexes_free(struct regexes *all);

/**
 * regexes_take() - compile a regular expression, or find it compiled
 * @at: where it begins in the text of @node, for complaints; -1: it is none of its texts
 * @all, @n: where it comes to; there is room. @index: its place there
 * Return: false, reported.
 */
bool regexes_take(struct loader *l, const struct tree_node *node, const char *regex, int64_t at,
                  struct pattern *all, size_t *n, uint16_t *index);

/**
 * regexes_add() - the same of a kernel's name
 * @text: becomes a copy of it, the caller's; @index: its place among the patterns
 * Return: true if both are set; reports otherwise.
 */
bool regexes_add(struct loader *l, const struct tree_node *node, char **text, uint16_t *index);
