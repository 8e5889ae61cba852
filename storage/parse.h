/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The metadata of a chunk as it lies in memory, checked before anything in it is used as a size, an index or
 * an offset. What passes contradicts neither itself nor the limits of the format. Pure; any thread. Views
 * borrow the metadata. Source: docs/format.md 5, 6, 7.
 */
#pragma once

#include <dmi/format.h>
#include <dmi/trace.h>

#include <stdbool.h>
#include <stddef.h>

struct records_view {
    uint32_t n_records, n_groups, n_planes, n_kept;
    const struct dmi_record *records;
    const struct dmi_group *groups;
    const struct dmi_plane *planes;
    const uint32_t *kept;
};

/**
 * parse_records() - the tables of a RECORDS chunk
 * @meta: aligned to 8 bytes
 * Element types, encodings and codecs that nobody here knows pass: see parse_planes().
 * Return: 0 with *@wrong NULL or what contradicts what; -ENOMEM.
 */
int parse_records(const uint8_t *meta, uint64_t n_meta, uint64_t n_payload, size_t n_sites,
                  struct records_view *out, const char **wrong);

/**
 * parse_step() - the entry of a STEPS chunk at @meta
 * *@n_bytes is where the next entry begins, 0 where that cannot be said.
 * Return: 0 with *@wrong NULL or what contradicts what; -ENOMEM.
 */
int parse_step(const uint8_t *meta, uint64_t n_left, uint64_t *n_bytes, const char **wrong);

/* Span @i of an entry that parse_step() let pass, or that a writer made; what an older writer's spans lack is 0. */
void parse_span(const uint8_t *entry, uint32_t i, struct dmi_span_entry *out);

struct table_view {
    uint32_t n, entry_bytes, n_string_bytes;
    const uint8_t *entries, *strings;
};

/* The table of a chunk of OUTCOMES, STEP_TIMES or MARKS, whose entries have @least bytes or more. *@wrong: NULL or what contradicts what. */
void parse_table(const uint8_t *meta, uint64_t n_meta, size_t least, struct table_view *out,
                 const char **wrong);

/* Calls @fn for each entry that is good; as parse_outcome() gives it. Of a chunk that is not, for none. */
void parse_each_outcome(const uint8_t *meta, uint64_t n_meta,
                        void (*fn)(void *ctx, const struct dmi_outcome *at, const uint8_t *list,
                                   const char *id),
                        void *ctx);

/**
 * parse_outcome() - entry @i
 * @list: gets the list of accepted rows (at->n_accepted times u32, not aligned), NULL where they are the first ones
 * @id: gets the request's id, at->id_bytes bytes
 * Return: NULL, or what contradicts what. The step is not looked at.
 */
const char *parse_outcome(const struct table_view *view, uint32_t i, struct dmi_outcome *at,
                          const uint8_t **list, const char **id);

/**
 * parse_change() - the entry of a CHANGES chunk at @meta
 * @json: gets the object's bytes, at->json_bytes of them, not parsed yet
 * *@n_bytes as of parse_step(). Return: NULL, or what contradicts what.
 */
const char *parse_change(const uint8_t *meta, uint64_t n_left, uint64_t *n_bytes,
                         struct dmi_change_entry *at, const char **json);

/* Entry @i of a table of STEP_TIMES. */
void parse_step_times(const struct table_view *view, uint32_t i, struct dmi_step_times *at);

/*
 * Entry @i of a table of RANGES; @name, @facts: get at->name_bytes and at->facts_bytes bytes. Return: NULL, or what
 * contradicts what. That facts are JSON is not looked at.
 */
const char *parse_range(const struct table_view *view, uint32_t i, struct dmi_range_entry *at,
                        const char **name, const char **facts);

/* Entry @i of a table of MARKS; @text: gets at->text_bytes bytes. Return: NULL, or what contradicts what. */
const char *parse_mark(const struct table_view *view, uint32_t i, struct dmi_mark *at,
                       const char **text);

struct footer_view {
    struct dmi_footer head;
    const struct dmi_footer_chunk *chunks;
    const struct dmi_footer_site *sites;
    const struct dmi_footer_entry *entries;
    const struct dmi_footer_span *spans;
    const char *strings;
};

/**
 * parse_footer() - the tables of a FOOTER chunk that begins at @offset in its file
 * Return: 0 with *@wrong NULL or what contradicts what; -ENOMEM.
 */
int parse_footer(const uint8_t *meta, uint64_t n_meta, uint64_t offset, size_t n_sites,
                 struct footer_view *out, const char **wrong);

/* Are all @n bytes 0? */
bool parse_is_zero(const void *data, size_t n);
