/* SPDX-License-Identifier: Apache-2.0 */
/* What the reader's files share; for storage/reader*.c alone. One thread a reader. */
#ifndef STORAGE_READER_PRIVATE_H
#define STORAGE_READER_PRIVATE_H

#include "storage/codec.h"
#include "storage/footer.h"
#include "storage/parse.h"
#include "storage/reader.h"

#include <jansson.h>

struct reader_chunk {
    uint32_t segment;
    uint64_t offset; /* of the header */
    struct dmi_chunk_header header;
    uint8_t *meta;            /* owned; checked */
    struct records_view view; /* of RECORDS; empty where they contradict themselves */
};

struct reader_segment {
    char name[32];
    uint32_t number;
    int fd;
    uint64_t n_bytes;
    uint64_t first_sequence, next_sequence;
    uint64_t n_chunks, n_records;
    bool header_ok, closed;
    bool other_version;  /* not ours: nothing of it is read */
    bool lost;           /* a chunk of it could not be read: its index cannot be judged */
    struct footer index; /* made again from the chunks that were read */
    size_t first_chunk;  /* in reader->chunks */
    uint64_t n_torn;
};

struct reader {
    struct reader_run run;
    char *path;
    int dir; /* -1: a lone segment */
    bool have_uuid;
    uint32_t other_version; /* of the run or of a segment, where it is not ours */
    uint8_t uuid[16];

    json_t *manifest;   /* NULL: none that can be trusted */
    json_t *dictionary; /* of the segments, else of the manifest */
    uint64_t dictionary_hash;
    struct dmi_site *sites;
    size_t n_sites;

    struct reader_segment *segments;
    size_t n_segments;
    struct reader_chunk *chunks;
    size_t n_chunks, chunks_room;
    struct reader_record *records;
    size_t n_records, records_room;
    struct reader_step *steps;
    size_t n_steps, steps_room;
    struct dmi_counters *counters;
    struct dmi_tally *found; /* per site */

    struct reader_finding *findings;
    size_t n_findings, findings_room;

    struct codec *codec;
    struct { /* the block decoded last */
        uint32_t chunk, group;
        uint64_t block;
        size_t n;
        uint8_t raw[DMI_BLOCK_BYTES];
        uint8_t stored[DMI_BLOCK_BYTES];
    } * cache;
};

void reader_note(struct reader *reader, bool damage, const char *file, int64_t chunk,
                 uint64_t offset, const char *fmt, ...) __attribute__((format(printf, 6, 7)));

/* Something that was written as it should be and that this program does not know. */
void reader_note_unknown(struct reader *reader, const char *file, int64_t chunk, uint64_t offset,
                         const char *fmt, ...) __attribute__((format(printf, 5, 6)));

/* Reads exactly @n bytes. Return: 0, -EIO, -ENODATA (the file ends before). */
int reader_pread(int fd, void *out, size_t n, uint64_t offset);

/* Reads a whole file of at most @most bytes. Return: 0 or -errno; *@out is the caller's. */
int reader_load(struct reader *reader, const char *name, size_t most, uint8_t **out, size_t *n);

/* Room for one more element of @size. Return: 0 or -ENOMEM. */
int reader_grow(void **array, size_t n, size_t *room, size_t size);

/* Walks one segment; what is whole in it is added to the reader. Return: 0 or -errno (memory). */
int reader_walk(struct reader *reader, uint32_t segment);

/* The JSON parts: each notes what is wrong by itself. Return: 0 or -errno (memory). */
int reader_take_manifest(struct reader *reader);
int reader_take_dictionary(struct reader *reader, const char *file, const char *json, size_t n);
int reader_fill_run(struct reader *reader);
/* What the manifest and counters say, against what is there. */
int reader_check_files(struct reader *reader);

#endif
