/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the reader share, and no other file. One thread a reader. Each part of struct reader is changed by the files
 * that stand beside it, and by those that open a reader. A file calls functions of those above it in this list.
 * tests/static/test_layers.py holds them to both:
 *
 *     notes.c         findings
 *     files.c         folders, file descriptors, bytes
 *     json.c          manifest and dictionary
 *     entries.c       what is in a chunk of steps, outcomes, changes, the trace
 *     chunk.c         a chunk's metadata, on demand
 *     index.c         a closed segment by its footer
 *     walk.c          any segment chunk by chunk
 *     segments.c      which segments there are
 *     changes.c       what was changed while the run was written
 *     trace.c         when steps ran
 *     trace_marks.c   what marks say of a trace
 *     account.c       sums
 *     reused_ids.c    ids that come again, as they are shown
 *     find.c          which runs a path stands for
 *     check.c         manifest, counters and spec against what is there
 *     edits.c         what became of the rows that edits want, and what the edits were
 *     extents.c       in which chunks steps and outcomes lie
 *     trace_account.c whether a trace agrees with its marks and with itself
 *     steps.c         steps that a selection needs
 *     outcomes.c      what became of their rows
 *     select.c        records that a query asks for
 *     windows.c       some records or steps at a time
 *     decode.c        payload
 *     one.c           one run: opened, refreshed, selected, closed
 *     verify.c        everything, the index distrusted
 *     ranks_agree.c   runs of ranks that contradict each other
 *     ranks_join.c    steps and records of several runs joined
 *     ranks_decode.c  payload of joined records
 *     ranks.c         several runs as one: opened, selected, refreshed
 *     reader.c        what programs call
 *     release.c       segments that were read and may go
 */
#pragma once

#include "core/grow.h"
#include "core/sorted.h"
#include "storage/chunk_types.h"
#include "storage/codec/codec.h"
#include "storage/footer.h"
#include "storage/object.h"
#include "storage/parse.h"
#include "storage/reader/reader_find.h"
#include "storage/reader/reader_notes.h"
#include "storage/reader/reader.h"

#include <stdlib.h>
#include <sys/types.h>

/* The metadata of a RECORDS chunk in memory. */
struct reader_meta {
    struct dmi_chunk_header header;
    uint8_t *bytes;
    struct records_view view;
    uint64_t used; /* when it was last asked for */
};

/* A change as it stands in its chunk; borrowed from that. */
struct reader_noted {
    struct dmi_change_entry at;
    const char *json;
};

struct reader_chunk {
    uint64_t offset; /* of the header */
    uint64_t sequence;
    uint64_t first, last; /* launches or steps, as in the index */
    uint32_t type;
    uint32_t n;               /* records or steps */
    bool noted;               /* what is not known in it was named */
    bool strange;             /* of RECORDS: there was something to name */
    bool in_part;             /* some of it contradicts itself: it is not read twice */
    struct reader_meta *meta; /* of RECORDS; NULL: not in memory */
    uint8_t *bytes;           /* metadata of others, once loaded */
    union {                   /* n_held of what it holds, beside @bytes */
        void *held;
        struct reader_step *steps;
        struct reader_outcome *outcomes;
        struct reader_noted *noted_changes;
        struct dmi_step_times *step_times;
        struct reader_range *ranges;
        struct reader_mark *marks;
        struct ran *ran;
        struct ran_sum *sums;
    };
    size_t n_held;
    struct dmi_span_entry
        *spans; /* of @steps whose entries have spans of another size than today's */
};

/* Consecutive chunks of a segment that hold steps, or outcomes; what repeats them included. */
struct reader_extent {
    uint32_t of;          /* DMI_CHUNK_STEPS, DMI_CHUNK_OUTCOMES */
    uint32_t first, last; /* chunks, by their place in the segment; others may lie between them */
    uint64_t low, high;   /* sequences of steps */
};

struct reader_segment {
    char name[32];
    uint32_t number;
    int fd;       /* -1: not open now */
    bool keep_fd; /* a lone segment: not opened again by its name */
    uint64_t fd_used;
    dev_t dev;
    ino_t ino;
    uint64_t n_bytes;
    uint64_t first_sequence, next_sequence;
    uint64_t first_chunk,
        end_chunk; /* its chunks have sequence numbers from the first to before the second */
    bool header_read, header_ok, closed;
    bool other_version; /* not ours: nothing of it is read */
    bool indexed;       /* known by its footer; else by walking */
    bool lost;          /* a chunk of it could not be read: its footer cannot be judged */

    struct reader_chunk
        *chunks; /* those that can be read; the footer left out, and see reader_load_index() */
    size_t n_chunks, chunks_room;
    uint64_t n_seen; /* chunks with a valid header, the footer counted */

    uint8_t *footer; /* metadata, where indexed; NULL: not in memory, see reader_load_index() */
    size_t n_footer;
    struct footer_view view;         /* of @footer; the head stays */
    struct dmi_footer_site *tallies; /* likewise */
    size_t n_given;                  /* records by reader_window(), since it came to the segment */
    bool gone;                       /* deleted before it gave all of them */
    bool unsaid;                     /* likewise, and its steps could not be read */
    bool listed;                     /* @chunks has all of them */
    struct footer index;             /* where walked: made from the chunks */
    struct reader_extent *extents;   /* in their order; where a run is read by window */
    size_t n_extents, extents_room, n_extended; /* n_extended: chunks that they are of */

    uint64_t walked;    /* where the next chunk would begin */
    uint64_t last_hash; /* of the header before that place, to see whether it was cut back */
    uint64_t last_offset;
    bool have_footer, footer_holds; /* holds: it is the index of what was walked */
    uint64_t n_torn;
};

/*
 * Decoded blocks: a launch's records lie apart in a chunk, sorted by site and layer, so that reading in launch
 * order comes back to a block again and again.
 */
#define READER_BLOCKS 64

struct reader_block {
    uint32_t segment, chunk, group;
    uint64_t number;
    uint64_t used; /* 0: empty */
    size_t n;
    uint8_t raw[DMI_BLOCK_BYTES];
};

struct reader_blocks {
    struct reader_block block[READER_BLOCKS];
    struct reader_block *last; /* that was decoded; NULL: none */
    uint64_t next_offset;      /* of the block after it, in its group's stored bytes */
    uint8_t stored[DMI_BLOCK_BYTES];
};

/* ---- the parts of a reader */

/* Where the run lies: files.c; set by the file that opens it. */
struct reader_place {
    char *path;
    int dir; /* -1: a lone segment */
    size_t n_open;
    uint64_t clock; /* counts uses of descriptors */
};

/* What the run says of itself: json.c; its version and UUID are of the first file that has them. */
struct reader_said {
    bool have_uuid;
    uint8_t uuid[16];
    uint32_t other_version; /* of the run or of a segment, where it is not ours */
    json_t *manifest;       /* NULL: none that can be trusted */
    json_t *dictionary;     /* of the segments, else of the manifest */
    uint64_t dictionary_hash;
    bool own_dictionary; /* of a segment */
    struct dmi_site *sites;
    size_t n_sites;
};

/* Segments and their chunks: segments.c, index.c, walk.c; metadata in memory: chunk.c. */
struct reader_index {
    bool distrust; /* walk everything: for reader_verify() */
    struct reader_segment *segments;
    size_t n_segments;
    uint64_t clock; /* counts uses of metadata */
    size_t n_meta_bytes;
    size_t n_footer_bytes;
};

/* What a query means for this run: select.c. */
struct reader_wanted {
    const struct reader_query *query; /* NULL: all */
    bool *sites;                      /* by id; NULL: all */
    uint64_t *steps;                  /* sorted; NULL: all */
    size_t n_steps, steps_room;
    uint64_t first_chunk, end_chunk; /* the window */
};

/* What a query asked for: select.c, steps.c, outcomes.c; of joined runs ranks_join.c. */
struct reader_selection {
    bool made;       /* a refresh makes it again */
    bool all_steps;  /* a query selects all steps, too: they are joined with other runs' */
    bool have_query; /* else all */
    struct reader_query query; /* its strings are owned */
    struct reader_wanted wanted;
    uint64_t *named; /* sequence numbers of the steps that records name, sorted, each once */
    size_t n_named;
    struct reader_record *records;
    size_t n_records, records_room;
    uint32_t **kept; /* tables of kept rows of the records, owned */
    size_t n_kept, kept_room;
    struct reader_steps steps;
};

/* Ids that are not shown as they are stored: reused_ids.c. */
struct reader_names {
    struct reader_use *uses; /* by id, rank, first step */
    size_t n_uses, uses_room;
    struct reader_named_end *ends; /* by place and number */
    size_t n_ends, ends_room;
    char **texts; /* owned */
    size_t n_texts, texts_room;
    bool wanted;      /* by window: they are not there yet */
    bool by_sequence; /* uses are from a sequence on; else from a place among all steps */
    bool any_step;    /* the run has steps; those of the first: */
    int32_t ranks[8];
};

/* decode.c */
struct reader_decoder {
    struct codec *codec;
    struct reader_blocks *blocks;
    uint64_t clock; /* counts uses of blocks */
};

/* Blocks name chunks by their place in the segment, which has changed. */
static inline void reader_forget_blocks(struct reader_decoder *decoder)
{
    free(decoder->blocks);
    decoder->blocks = NULL;
}

/* A record of one run that a joined one consists of. */
struct reader_part {
    uint32_t run;
    size_t index; /* in that run's selection */
};

/* A run that is not joined: it is another one again, or another says the same rank. */
struct reader_left_out {
    struct reader *run;
    uint32_t *site_of;
    size_t *step_of;
    char *why; /* a sentence that names both */
};

/* Ranks mean different tensors by one site. */
struct reader_contradiction {
    uint64_t key;   /* of the site */
    int32_t dp, pp; /* of the ranks; -1: of any */
    uint32_t site;  /* ours, for its name */
    uint64_t n;     /* records that are left out */
    char text[400]; /* what two of them say */
};

/* Runs of several ranks, read as one. */
struct reader_ranks {
    struct reader **runs;
    struct reader_rank *about; /* by run */
    size_t n;
    int32_t only[DMI_AXIS_COUNT]; /* reader_only_ranks() */
    uint32_t **site_of;           /* by run and its site: ours */
    uint64_t *site_key;           /* by our site: alike for what may be joined */
    size_t **step_of;             /* by run and its selected step: ours */
    struct reader_part
        *parts; /* of the joined records; a record's segment is its first, its chunk their number */
    size_t n_parts, parts_room;
    struct reader_left_out *left_out;
    size_t n_left_out;
    struct reader_contradiction *contradictions; /* of what is selected */
    size_t n_contradictions, contradictions_room;
};

struct reader {
    struct reader_run run; /* what all of them say to programs */
    struct reader_notes notes;
    struct reader_place place;
    struct reader_said said;
    struct reader_index index;
    char *change_words;            /* changes.c: what the run's changes say, one after the other */
    struct dmi_counters *counters; /* check.c */
    struct dmi_edit_accounts *edits; /* edits.c */
    struct dmi_tally *found;         /* account.c: per site */
    struct reader_selection selection;
    struct reader_names names;
    struct reader_decoder decoder;
    struct reader_ranks *ranks; /* NULL: this is one run */
};

/* Are records selected window by window? */
static inline bool reader_is_by_window(const struct reader *r)
{
    return r->selection.have_query && r->selection.query.by_window;
}

/* A finding of what is wrong about a chunk of a segment. */
#define NOTE_CHUNK(r, s, c, ...)                                                                   \
    reader_note(&(r)->notes, true, (s)->name, (int64_t)(c)->sequence, (c)->offset, __VA_ARGS__)

/* ---- files.c */

/* Whether @name is a segment's; its number. */
bool reader_is_segment(const char *name, uint32_t *number);

/* Whether the folder @path is a run's. */
bool reader_is_run(const char *path);

/* Looks at one. @dir: AT_FDCWD for a lone segment. Return: 0; -errno, which is noted. */
int reader_find_segment(struct reader *reader, int dir, const char *name, uint32_t number,
                        struct reader_segment *out);
void reader_close_segment(struct reader *reader, struct reader_segment *segment);

/* Reads exactly @n bytes. Return: 0, -errno, -ENODATA (the file ends before). */
int reader_read(struct reader *reader, struct reader_segment *segment, void *out, size_t n,
                uint64_t offset);

/* Where data begins at or after @offset, holes passed over; UINT64_MAX: nowhere. */
uint64_t reader_skip_hole(struct reader *reader, struct reader_segment *segment, uint64_t offset);

/* How many of @n bytes from @offset on are in holes, which nobody wrote. */
uint64_t reader_hole_bytes(struct reader *reader, struct reader_segment *segment, uint64_t offset,
                           uint64_t n);

/* The size now. Return: 0 or -errno. */
int reader_measure(struct reader *reader, struct reader_segment *segment);

/* Reads a whole file of at most @most bytes. Return: 0 or -errno; *@out is the caller's. */
int reader_load(struct reader *reader, const char *name, size_t most, uint8_t **out, size_t *n);

/* Closes the files of all segments. */
void reader_close_files(struct reader *reader);

/* ---- json.c */

/* Each of these notes what is wrong by itself. Return: 0 or -errno (memory). */
int reader_take_manifest(struct reader *reader);
/* Has it been replaced since it was taken? */
bool reader_manifest_is_old(struct reader *reader);
int reader_take_dictionary(struct reader *reader, const char *file, const char *json, size_t n);
int reader_dictionary_from_manifest(struct reader *reader);
int reader_fill_run(struct reader *reader);
/* Of segment @number by the manifest: chunks of one that was released, else 0. */
uint64_t reader_released_chunks(const struct reader *reader, size_t number);

/* ---- entries.c */

/* Takes over @bytes as the metadata of a chunk. *@wrong: of the first entry that was left out. Return: 0 or -ENOMEM. */
typedef int reader_take(struct reader_chunk *c, uint64_t n, uint8_t *bytes, const char **wrong);
reader_take reader_take_steps, reader_take_outcomes, reader_take_changes, reader_take_step_times,
    reader_take_ranges, reader_take_trace, reader_take_sums, reader_take_marks,
    reader_take_packed_steps;
/* Frees what the chunk holds, but for metadata of RECORDS. */
void reader_free_held(struct reader_chunk *chunk);

/* ---- chunk.c */

/* Whether the header can be one of this run, of any version from 2 on. */
bool reader_header_valid(const struct reader *reader, const struct dmi_chunk_header *header);

/**
 * reader_read_meta() - metadata with its padding, against its hash
 * Return: 0; -EBADMSG; -ENXIO (much of it, and more than half of that holes); -ENOMEM, -errno. *@out is the caller's.
 */
int reader_read_meta(struct reader *reader, struct reader_segment *segment, uint64_t offset,
                     const struct dmi_chunk_header *header, uint8_t **out);

/**
 * reader_meta() - the metadata of a RECORDS chunk, from memory or from the file
 * Valid until the next call. Return: 0; -ENOMEM; -EBADMSG with *@wrong.
 */
int reader_meta(struct reader *reader, struct reader_segment *segment, struct reader_chunk *chunk,
                struct reader_meta **out, const char **wrong);

/* Takes over @bytes as the chunk's metadata. Return: as reader_meta(). */
int reader_keep_meta(struct reader *reader, struct reader_chunk *chunk,
                     const struct dmi_chunk_header *header, uint8_t *bytes, const char **wrong);

/* Takes over @bytes as the metadata of a chunk of another type than RECORDS. Return: 0 or -ENOMEM; *@wrong: what was left out. */
int reader_adopt(struct reader_chunk *chunk, uint64_t n_meta, uint8_t *bytes, const char **wrong);

/* Reads what a chunk of another type than RECORDS holds, if it is not there. Return: as reader_meta(). */
int reader_load_chunk(struct reader *reader, struct reader_segment *segment,
                      struct reader_chunk *chunk, const char **wrong);

/* Whether a record keeps a row twice: it contradicts itself, and is left out. */
bool reader_keeps_twice(const struct records_view *view, const struct dmi_record *record);

/* Names what is not known in a chunk of records, and which records contradict themselves, once. */
void reader_note_strange(struct reader *reader, struct reader_segment *segment,
                         struct reader_chunk *chunk, const struct records_view *view);

/* Frees the metadata of a chunk of records. */
void reader_free_meta(struct reader *reader, struct reader_chunk *chunk);

/* A place among the chunks of a run; zeros: before the first. */
struct reader_cursor {
    uint32_t segment, chunk;
    uint32_t next; /* chunk of that segment */
};

/* The next chunk that is listed of @type or that repeats it, and its place; NULL: there is none. */
struct reader_chunk *reader_next_chunk(const struct reader *reader, uint32_t type,
                                       struct reader_cursor *at);

/* Frees metadata of all chunks. */
void reader_free_chunks(struct reader *reader, struct reader_segment *segment);

/* ---- index.c, walk.c */

/**
 * reader_by_index() - take a closed segment's structure from its footer
 * Return: 1 done; 0 it has none that holds (walk it); -errno (memory).
 */
int reader_by_index(struct reader *reader, uint32_t segment);

/* Reads the chunks that were not read yet. Return: 0 or -errno (memory). */
int reader_walk(struct reader *reader, uint32_t segment);

/* Forgets what is known of a segment and walks it. Return: 0 or -errno (memory). */
int reader_walk_anew(struct reader *reader, uint32_t segment);

/* The trailer of a closed segment, checked. Return: false where there is none that can be trusted. */
bool reader_read_trailer(struct reader *reader, struct reader_segment *segment,
                         struct dmi_trailer *out);

/* What to do about a chunk that is not as its index says. Return: -EAGAIN: begin again; 0; -ENOMEM. */
int reader_distrust(struct reader *reader, uint32_t segment, uint32_t chunk, const char *wrong);

/* Reads the footer of a segment again, where it and the rows of chunks of records are not in memory. Return: 0, -ENOMEM,
 * -EBADMSG. */
int reader_load_index(struct reader *reader, struct reader_segment *segment);

/* Reads the footer again, where chunks are not listed. Return: as reader_load_index(). */
int reader_list_chunks(struct reader *reader, struct reader_segment *segment);

/* As reader_next_chunk(), of all chunks. Return: 0 with *@out, NULL: there is none; -EAGAIN (begin again); -errno. */
int reader_next_listed(struct reader *reader, uint32_t type, struct reader_cursor *at,
                       struct reader_chunk **out);

/* What the index of a segment says, from its footer or from walking: the first and the last once reader_load_index() was called. */
const struct dmi_footer_entry *reader_entries(const struct reader_segment *segment, size_t *n);
const struct dmi_footer_site *reader_tallies(const struct reader_segment *segment, size_t *n);
const struct dmi_footer_span *reader_spans(const struct reader_segment *segment, size_t *n,
                                           const char **strings);

/* ---- segments.c */

/* Adds one, as reader_find_segment(); none where that cannot be read. Return: 0 or -ENOMEM. */
int reader_add_segment(struct reader *reader, int dir, const char *name, uint32_t number);

/* Adds the segments that the folder has and the reader has not. Return: 0 or -errno. */
int reader_list_segments(struct err *err, struct reader *reader);

/* Forgets those that the manifest calls released since. */
void reader_drop_released(struct reader *reader);

/* ---- changes.c */

/* Those of the manifest and of all chunks, into the run. Return: 0 or -ENOMEM. */
int reader_fill_changes(struct reader *reader);
void reader_forget_changes(struct reader *reader);

/* ---- account.c */

/* Adds @b to @a. Return: false where the sum does not fit, and *@a is then the greatest number. */
bool reader_add(uint64_t *a, uint64_t b);
bool reader_add_tally(struct dmi_tally *a, const struct dmi_tally *b);

/* Adds what a segment holds of each site to @sums, which has the sites below @n_sums. */
void reader_add_held(struct dmi_tally *sums, uint64_t n_sums, const struct reader_segment *segment);
/* Sums what the segments hold, per site. Return: 0 or -ENOMEM. */
int reader_sum(struct reader *reader);

/* ---- check.c: notes what is wrong by itself. Return: 0 or -errno (memory). */
int reader_check_files(struct reader *reader);

/* ---- edits.c: notes what is wrong by itself. Return: 0 or -errno (memory). */

/* The accounts of a run whose state is known, into the run. */
int reader_take_edits(struct reader *reader);
void reader_forget_edits(struct reader *reader);
/* Are the files there that the notes of changes name, as they say? */
int reader_check_packs(struct reader *reader);

/* ---- select.c */

/* Orders records by segment, chunk, group, offset. For qsort(). */
int reader_place_order(const void *a, const void *b);

/* Copies the query for selections to come. Return: 0 or -ENOMEM with a sentence. */
int reader_keep_query(struct err *err, struct reader *reader, const struct reader_query *query);
/* Selects what the query asks for, again after the run has grown. Return: 0 or -errno. */
int reader_select_again(struct err *err, struct reader *reader);
/* Frees the records that are selected. */
void reader_free_selection(struct reader *reader);
/* The records alone. */
void reader_free_records(struct reader *reader);
/* Reads the index of a segment. @n_gone: NULL: one that was deleted is walked, as any whose footer does not hold; else it gets
 * more records, and the segment is passed over. Return: 0, -EAGAIN, -errno. */
int reader_need_index(struct reader *reader, uint32_t segment, uint64_t *n_gone);
/* Selects the records of a segment that are wanted. Return: likewise. */
int reader_select_segment(struct reader *reader, uint32_t segment, uint64_t *n_gone);
/* In launch order, with their steps. */
void reader_order_records(struct reader *reader);
/* Frees the copy of the query. */
void reader_free_query(struct reader *reader);

/* ---- decode.c */

/* As reader_decode(), of a record of one run. */
int reader_decode_one(struct err *err, struct reader *reader, const struct reader_record *record,
                      void *out);

/* ---- one.c: as the functions without _one, of one run. */

/* @path: a run's, or a lone segment's. */
int reader_open_one(struct err *err, const char *path, bool distrust, struct reader **out);
int reader_refresh_one(struct err *err, struct reader *reader);
int reader_select_one(struct err *err, struct reader *reader, const struct reader_query *query);
void reader_close_one(struct reader *reader);

/* For _cleanup_(). */
static inline void reader_close_onep(struct reader **reader)
{
    reader_close_one(*reader);
}

/* ---- verify.c: as reader_verify(), of one run. */
int reader_verify_one(struct reader *reader);

/* ---- ranks_join.c */

/* Joins what is selected in the runs. Return: 0 or -ENOMEM. */
int reader_join_ranks(struct reader *reader);

/* ---- ranks_decode.c: as reader_decode(), of a joined record. */
int reader_decode_parts(struct err *err, struct reader *reader, const struct reader_record *record,
                        void *out);

/* ---- ranks.c */

/* As reader_open_index(), of several runs. Return: -ENOTUNIQ with a sentence: they are not those of ranks. */
int reader_open_ranks(struct err *err, const struct reader_found *found, struct reader **out);
/* Says of the only run in a folder which rank it is, where it has parts of tensors. Return: 0 or -ENOMEM. */
int reader_note_alone(struct reader *reader);
int reader_select_ranks(struct err *err, struct reader *reader, const struct reader_query *query);
int reader_refresh_ranks(struct err *err, struct reader *reader);
int reader_verify_ranks(struct reader *reader);
void reader_free_ranks(struct reader *reader);
