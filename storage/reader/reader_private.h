/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the reader's files share; for storage/reader*.c alone. One thread a reader.
 *
 *     reader.c         a run: opened, refreshed, closed
 *     files.c   folders, file descriptors, bytes
 *     notes.c   findings
 *     changes.c what was changed while it was written
 *     json.c    manifest, dictionary, counters, spec
 *     index.c   a closed segment by its footer
 *     walk.c    any segment chunk by chunk
 *     chunk.c   a chunk's metadata, on demand
 *     select.c  records and steps that a query asks for
 *     outcomes.c what became of rows
 *     decode.c  payload
 *     verify.c  everything, the index distrusted
 *     account.c sums
 *     ranks.c   several runs as one: opened, selected, refreshed
 *     ranks_join.c their steps and records joined
 *     ranks_decode.c payload of joined records
 */
#ifndef STORAGE_READER_READER_PRIVATE_H
#define STORAGE_READER_READER_PRIVATE_H

#include "storage/chunk_types.h"
#include "storage/codec/codec.h"
#include "storage/footer.h"
#include "storage/parse.h"
#include "storage/reader/reader.h"

#include <jansson.h>
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
    struct reader_meta *meta; /* of RECORDS; NULL: not in memory */
    uint8_t *bytes;           /* metadata of others, once loaded */
    union {                   /* n_held of what it holds, beside @bytes */
        void *held;
        struct reader_step *steps;
        struct reader_outcome *outcomes;
        struct reader_noted *noted_changes;
    };
    size_t n_held;
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
    bool header_read, header_ok, closed;
    bool other_version; /* not ours: nothing of it is read */
    bool indexed;       /* known by its footer; else by walking */
    bool lost;          /* a chunk of it could not be read: its footer cannot be judged */

    struct reader_chunk *chunks; /* those that can be read; the footer left out */
    size_t n_chunks, chunks_room;
    uint64_t n_seen; /* chunks with a valid header, the footer counted */

    uint8_t *footer; /* metadata, where indexed */
    struct footer_view view;
    struct footer index; /* where walked: made from the chunks */

    uint64_t walked;    /* where the next chunk would begin */
    uint64_t last_hash; /* of the header before that place, to see whether it was cut back */
    uint64_t last_offset;
    bool have_footer;
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

struct reader_note_entry {
    struct reader_finding finding;
    bool judged;      /* of the run as it stood: made anew by a refresh */
    uint32_t segment; /* number of the one that was walked; UINT32_MAX: none */
};

/* A record of one run that a joined one consists of. */
struct reader_part {
    uint32_t run;
    size_t index; /* in that run's selection */
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
};

struct reader {
    struct reader_run run;
    char *change_words;         /* what the run's changes say, one after the other */
    struct reader_ranks *ranks; /* NULL: this is one run */
    bool all_steps; /* a query selects all steps, too: they are joined with other runs' */
    char *path;
    int dir;       /* -1: a lone segment */
    bool distrust; /* walk everything: for reader_verify() */
    bool
        vanished; /* a file was gone that the manifest has: what is noted of that is not to be believed */
    bool missing_is_damage; /* nobody released it meanwhile */
    bool have_uuid;
    uint8_t uuid[16];
    uint32_t other_version; /* of the run or of a segment, where it is not ours */

    json_t *manifest;   /* NULL: none that can be trusted */
    json_t *dictionary; /* of the segments, else of the manifest */
    uint64_t dictionary_hash;
    bool own_dictionary; /* of a segment */
    struct dmi_site *sites;
    size_t n_sites;

    struct reader_segment *segments;
    size_t n_segments;
    uint64_t clock; /* counts uses, for what is kept in memory */
    size_t n_open;
    uint64_t n_meta_bytes;

    bool selected;             /* reader_select() was called: a refresh does it again */
    bool have_query;           /* else all */
    struct reader_query query; /* its strings are owned */
    struct reader_record *records;
    size_t n_records, records_room;
    uint32_t **kept; /* tables of kept rows of the records, owned */
    size_t n_kept, kept_room;
    struct reader_step *steps;
    size_t n_steps, steps_room;
    struct reader_outcome *outcomes; /* by step and span */
    size_t n_outcomes, outcomes_room;
    struct reader_end *ends;
    size_t n_ends, ends_room;
    struct dmi_counters *counters;
    struct dmi_tally *found; /* per site */

    struct reader_note_entry *notes;
    size_t n_notes, notes_room;
    bool judging;     /* what is noted now is judged */
    uint32_t walking; /* segment being walked, UINT32_MAX: none */

    struct codec *codec;
    struct reader_blocks *blocks;
};

/* ---- notes.c */

/* Adds a finding; @chunk is a sequence number, -1 for none. */
void reader_note(struct reader *reader, bool damage, const char *file, int64_t chunk,
                 uint64_t offset, const char *fmt, ...) __attribute__((format(printf, 6, 7)));

/* Something that was written as it should be and that this program does not know. */
void reader_note_unknown(struct reader *reader, const char *file, int64_t chunk, uint64_t offset,
                         const char *fmt, ...) __attribute__((format(printf, 5, 6)));

/* Forgets what was judged (@segment UINT32_MAX), or what was found while that segment was read. */
void reader_forget(struct reader *reader, uint32_t segment);

/* ---- files.c */

/* Whether @name is a segment's; its number. */
bool reader_is_segment(const char *name, uint32_t *number);

/* Sets *@out to the folder of the run at @path or in it. Return: 0 or -errno with a sentence. */
int reader_find_run(struct err *err, const char *path, char **out);

/* Adds the segments that the folder has and the reader has not. Return: 0 or -errno. */
int reader_list_segments(struct err *err, struct reader *reader);

/* Forgets those that the manifest calls released since. */
void reader_drop_released(struct reader *reader);

/* Adds one. @dir: AT_FDCWD for a lone segment. Notes what cannot be opened. Return: 0 or -ENOMEM. */
int reader_add_segment(struct reader *reader, int dir, const char *name, uint32_t number);

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

/* Room for one more element of @size. Return: 0 or -ENOMEM. */
int reader_grow(void **array, size_t n, size_t *room, size_t size);

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

/* Takes over @bytes as the metadata of STEPS. *@wrong: of the first step that was left out. */
int reader_take_steps(struct reader_chunk *chunk, uint64_t n_meta, uint8_t *bytes,
                      const char **wrong);

/* Names what is not known in a chunk of records, once. */
void reader_note_strange(struct reader *reader, struct reader_segment *segment,
                         struct reader_chunk *chunk, const struct records_view *view);

/* Frees what the chunk holds, but for metadata of RECORDS. */
void reader_free_held(struct reader_chunk *chunk);

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

/* What the index of a segment says, from its footer or from walking. */
const struct dmi_footer_entry *reader_entries(const struct reader_segment *segment, size_t *n);
const struct dmi_footer_site *reader_tallies(const struct reader_segment *segment, size_t *n);
const struct dmi_footer_span *reader_spans(const struct reader_segment *segment, size_t *n,
                                           const char **strings);

/* ---- outcomes.c */

/* Takes over @bytes as the metadata of OUTCOMES. *@wrong: of the first that was left out. Return: 0 or -ENOMEM. */
int reader_take_outcomes(struct reader_chunk *chunk, uint64_t n_meta, uint8_t *bytes,
                         const char **wrong);

/* Adds those of a chunk to the selection, whose steps are there. Return: as reader_load_chunk(). */
int reader_select_outcomes(struct reader *reader, uint32_t segment, uint32_t chunk,
                           const char **wrong);

/* Gives those selected to their steps, and puts the ends in order. */
void reader_attach_outcomes(struct reader *reader);

/* ---- select.c */

/* Whether steps may be missing that later segments repeat. */
bool reader_is_incomplete(const struct reader *reader);
/* The step of a sequence number, if it is selected. */
struct reader_step *reader_find_step(const struct reader *reader, uint64_t sequence);
/* How many of the selected steps have a sequence number up to @sequence. */
size_t reader_steps_to(const struct reader *reader, uint64_t sequence);

/* Selects anew what was selected, after the run has grown. Return: 0 or -errno. */
int reader_select_again(struct err *err, struct reader *reader);
/* Frees the records that are selected. */
void reader_free_selection(struct reader *reader);
/* Frees the copy of the query. */
void reader_free_query(struct reader *reader);

/* ---- reader.c: a segment's file is gone. Return: whether that may be as it was released since the manifest was read. */
bool reader_note_vanished(struct reader *reader);
/**
 * reader_settle() - where files were gone: look at the run again, until it stands still
 * @res: of what was done before. Return: @res, or 0 or -errno with a sentence of the last look.
 */
int reader_settle(struct err *err, struct reader *reader, int res);

/* ---- account.c: sums what the segments hold, per site. Return: 0 or -ENOMEM. */
int reader_sum(struct reader *reader);

/* ---- changes.c */

/* Takes over @bytes as the metadata of CHANGES. *@wrong: of the first that was left out. Return: 0 or -ENOMEM. */
int reader_take_changes(struct reader_chunk *chunk, uint64_t n_meta, uint8_t *bytes,
                        const char **wrong);
/* Those of the manifest and of all chunks, into the run. Return: 0 or -ENOMEM. */
int reader_fill_changes(struct reader *reader);
void reader_forget_changes(struct reader *reader);

/* ---- json.c */

/* An object whose keys stand there once, not nested too deep; NULL: it is none. */
json_t *reader_parse_json(const char *text, size_t n);

/* Each of these notes what is wrong by itself. Return: 0 or -errno (memory). */
int reader_take_manifest(struct reader *reader);
/* Has it been replaced since it was taken? */
bool reader_manifest_is_old(struct reader *reader);
int reader_take_dictionary(struct reader *reader, const char *file, const char *json, size_t n);
int reader_dictionary_from_manifest(struct reader *reader);
int reader_fill_run(struct reader *reader);
/* What the manifest and counters say, against what is there. */
int reader_check_files(struct reader *reader);
/* Of segment @number by the manifest: chunks of one that was released, else 0. */
uint64_t reader_released_chunks(const struct reader *reader, size_t number);

/* ---- files.c: the folders of runs in @path, sorted. Return: 0 or -errno with a sentence. */
int reader_list_runs(struct err *err, const char *path, char ***out, size_t *n);
void reader_free_paths(char **paths, size_t n);

/* ---- notes.c: all findings are gone. */
void reader_forget_all(struct reader *reader);

/* ---- ranks.c */

/* As reader_open_index(), of a folder that holds several runs. Return: -ENOTUNIQ: they are not those of ranks. */
int reader_open_ranks(struct err *err, const char *path, struct reader **out);
/* Says of the only run in a folder which rank it is, where it has parts of tensors. Return: 0 or -ENOMEM. */
int reader_note_alone(struct reader *reader);
int reader_select_ranks(struct err *err, struct reader *reader, const struct reader_query *query);
int reader_refresh_ranks(struct err *err, struct reader *reader);
int reader_verify_ranks(struct reader *reader);
void reader_free_ranks(struct reader *reader);

/* ---- ranks_join.c */

/* Joins what is selected in the runs. Return: 0 or -ENOMEM. */
int reader_join_ranks(struct reader *reader);
/* ---- ranks_decode.c: as reader_decode(), of a joined record. */
int reader_decode_parts(struct err *err, struct reader *reader, const struct reader_record *record,
                        void *out);

#endif
