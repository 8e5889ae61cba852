/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The structs of a segment file, format version 2, as they lie on disk: little-endian, no padding.
 * Source and meaning: docs/format.md; the numbers of its sections stand beside each struct.
 */
#ifndef DMI_FORMAT_H
#define DMI_FORMAT_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#define DMI_FORMAT_VERSION 2

#define DMI_SEGMENT_MAGIC 0x0031474553494d44ull /* "DMISEG1" and a zero byte */
#define DMI_CHUNK_MAGIC   0x63494d44u           /* "DMIc" */
#define DMI_TRAILER_MAGIC 0x0031444e45494d44ull /* "DMIEND1" and a zero byte */

#define DMI_BLOCK_BYTES  65536u /* raw bytes of a group that are encoded together */
#define DMI_MAX_META     (256u << 20)
#define DMI_MAX_PAYLOAD  (1ull << 40)
#define DMI_NO_STEP      UINT64_MAX
#define DMI_NO_LAYER     (-1)
#define DMI_NO_DEVICE    UINT32_MAX /* memory of the host */
#define DMI_CHUNK_ALIGN  8u
#define DMI_MAX_DIMS     4
#define DMI_MAX_SITES    65536u
#define DMI_MAX_SPANS    65536u /* of a step */
#define DMI_MAX_ID       255u   /* bytes of a request id */
#define DMI_MAX_TAGS     65535u /* bytes of a step's or a span's tags */
#define DMI_MAX_JSON     (64u << 20)
#define DMI_MAX_SEGMENTS 1000000u
#define DMI_SEGMENT_NAME "seg-%06u.dmi"

/* 2. Segment header: the first 128 bytes of a segment. */
struct dmi_segment_header {
    uint64_t magic;
    uint32_t version;
    uint32_t n_bytes; /* of this header */
    uint8_t run_uuid[16];
    uint32_t segment;        /* number, as in the file's name */
    uint32_t flags;          /* none defined; readers ignore them */
    uint64_t created_ns;     /* CLOCK_REALTIME */
    uint64_t first_sequence; /* of the segment's first chunk */
    uint64_t reserved[8];    /* 0 */
    uint64_t hash;           /* XXH3 of the bytes before it */
};

/* Readers skip types that they do not know. No writer writes 13 and 14, which are reserved. */
enum dmi_chunk_type {
    DMI_CHUNK_SITES = 1,          /* the site dictionary: JSON; first chunk of every segment */
    DMI_CHUNK_STEPS = 2,          /* step metadata */
    DMI_CHUNK_RECORDS = 3,        /* tensors */
    DMI_CHUNK_FOOTER = 4,         /* index; last chunk of a closed segment */
    DMI_CHUNK_OUTCOMES = 5,       /* rows accepted or rejected, requests ended */
    DMI_CHUNK_CHANGES = 6,        /* what was changed while the run was written */
    DMI_CHUNK_TRACE = 7,          /* what ran on the device: <dmi/trace.h> */
    DMI_CHUNK_STEPS_AGAIN = 8,    /* steps of earlier segments that records of this one name */
    DMI_CHUNK_OUTCOMES_AGAIN = 9, /* what became of those */
    DMI_CHUNK_RANGES = 10,        /* what threads of the host did */
    DMI_CHUNK_STEP_TIMES = 11,    /* when steps ran: <dmi/trace.h> */
    DMI_CHUNK_MARKS = 12,         /* what happened to the trace */
    DMI_CHUNK_SUMS = 15, /* what ran on the device, summed by step and name: <dmi/trace.h> */
    DMI_CHUNK_STEPS_PACKED = 16, /* step metadata, compressed: in runs without sites */
};

/* 3. Chunk header; @n_meta bytes of metadata and @n_payload bytes of payload follow, each padded
 * with zeros to a multiple of 8. */
struct dmi_chunk_header {
    uint32_t magic;
    uint16_t version;
    uint16_t type;      /* enum dmi_chunk_type */
    uint64_t sequence;  /* of the chunk in the run, from 0, without gaps */
    uint64_t n_meta;    /* without padding */
    uint64_t n_payload; /* without padding */
    uint64_t run;       /* the first 8 bytes of the run's UUID */
    uint64_t meta_hash; /* XXH3 of the metadata */
    /* XXH3 of the payload; 0 where there is none, and in RECORDS, whose planes have their own */
    uint64_t payload_hash;
    uint64_t hash; /* XXH3 of the 56 bytes before it */
};

/* 5. Metadata of a RECORDS chunk: this, then the tables of records, groups, planes, kept rows. */
struct dmi_records_head {
    uint32_t n_records;
    uint32_t n_groups;
    uint32_t n_planes;
    uint32_t n_kept; /* entries of the table of kept rows: u32 each */
};

struct dmi_record {
    uint32_t site;
    int32_t layer; /* DMI_NO_LAYER: none */
    uint32_t occurrence;
    uint16_t dtype;
    uint8_t n_dims;              /* 1..4 */
    uint8_t n_row_dims;          /* 1..n_dims: the first of them, which together are the rows */
    uint32_t dims[DMI_MAX_DIMS]; /* elements; those after n_dims are 0 */
    uint64_t launch;
    uint64_t forward;
    uint64_t step; /* sequence of a step of a STEPS chunk; DMI_NO_STEP: none */
    uint64_t time_ns;
    uint32_t device; /* CUDA ordinal; DMI_NO_DEVICE: it was read from host memory */
    uint32_t group;
    uint64_t offset;   /* of the record in the group's raw bytes */
    uint64_t n_bytes;  /* raw */
    uint32_t kept;     /* index of its first entry in the table of kept rows */
    uint32_t n_kept;   /* 0: row r is row r; else the number of its rows */
    uint32_t flags;    /* none defined; readers ignore them */
    uint32_t reserved; /* 0 */
    uint64_t hash;     /* XXH3 of the raw bytes */
};

enum dmi_encoding {
    DMI_ENCODING_RAW = 0,     /* elements as they are: one plane */
    DMI_ENCODING_PLANES = 1,  /* byte planes, the least significant byte's first */
    DMI_ENCODING_ROTATED = 2, /* each element rotated left by one bit, then byte planes */
};

struct dmi_group {
    uint16_t encoding;      /* enum dmi_encoding */
    uint16_t element_bytes; /* 1, 2, 4, 8: the number of planes unless DMI_ENCODING_RAW */
    uint32_t first_plane;   /* index in the table of planes */
    uint64_t n_raw;         /* bytes */
    uint64_t offset;        /* of the group's first stored byte in the payload */
    uint64_t n_stored;      /* bytes */
};

enum dmi_codec {
    DMI_CODEC_RAW = 0,
    DMI_CODEC_ZSTD = 1,   /* one zstd frame (RFC 8878), no dictionary */
    DMI_CODEC_PACKED = 2, /* 4 bits a byte, and escapes */
};

/* One plane of one block. Blocks in order, the planes of a block in order. */
struct dmi_plane {
    uint8_t codec;       /* enum dmi_codec */
    uint8_t reserved[3]; /* 0 */
    uint32_t n_stored;   /* bytes */
    uint64_t hash;       /* XXH3 of the stored bytes */
};

/* 6.10. The metadata of a STEPS_PACKED chunk: this, then one zstd frame. */
struct dmi_steps_packed {
    uint64_t n_bytes;  /* once it is unpacked */
    uint64_t reserved; /* 0 */
};

/* 6. An entry of a STEPS chunk: this, the spans, the strings, zeros up to a multiple of 8. */
struct dmi_step_entry {
    uint32_t n_bytes; /* of the whole entry */
    uint32_t n_spans;
    uint64_t sequence; /* what records name in `step` */
    uint64_t step;     /* the engine's own number */
    uint64_t time_ns;
    uint32_t n_rows;
    uint32_t flags;       /* enum dmi_step_flags, <dmi/dmi.h> */
    int32_t ranks[8];     /* tp rank, size, pp rank, size, dp, ep */
    uint32_t tags_offset; /* of the string, from the entry's start */
    uint32_t tags_bytes;  /* 0: none */
    uint32_t span_bytes;  /* distance from span to span: at least DMI_SPAN_ENTRY_LEAST */
    uint32_t reserved;    /* 0 */
};

struct dmi_span_entry {
    uint32_t id_offset;
    uint32_t id_bytes;
    uint32_t tags_offset;
    uint32_t tags_bytes;
    int64_t first_position;
    uint32_t first_row;
    uint32_t n_tokens;
    uint32_t n_cached;
    uint32_t phase;
    uint32_t flags;
    uint32_t n_prompt; /* tokens of the request's prompt; 0: not said */
    /* what writers before 2026-11-25 had no place for: DMI_SPAN_ENTRY_LEAST */
    uint32_t
        ids_offset; /* of the ids of the cached tokens, i32 each, from the entry's start: a multiple of 4 */
    uint32_t n_ids; /* n_cached, or 0: not said */
};

#define DMI_SPAN_ENTRY_LEAST 48 /* bytes of a span that every writer has written */

#define DMI_OUTCOME_NO_SPAN UINT32_MAX /* in `span` */
#define DMI_OUTCOME_FIRST   UINT32_MAX /* in `accepted`: the first rows of the span, no list */

enum dmi_outcome_flags {
    DMI_OUTCOME_END = 1 << 0,      /* the request ended */
    DMI_OUTCOME_ACCEPTED = 1 << 1, /* the entry says which rows of the span were accepted */
    DMI_OUTCOME_SHED = 1 << 2,     /* the request is shed: it has no rows from that step on */
};

/* 6.1, 6.4 to 6.6. Metadata of chunks of OUTCOMES, STEP_TIMES, MARKS and RANGES: this, the entries, the strings. */
struct dmi_table_head {
    uint32_t n_entries;
    uint32_t entry_bytes; /* distance from entry to entry: at least the struct's size */
    uint32_t n_string_bytes;
    uint32_t flags; /* none defined; readers ignore them */
};

struct dmi_outcome {
    uint64_t step;       /* sequence of a step; DMI_NO_STEP: none */
    uint32_t span;       /* index in that step, DMI_OUTCOME_NO_SPAN */
    uint32_t flags;      /* enum dmi_outcome_flags */
    uint64_t time_ns;    /* when it was said */
    uint32_t n_accepted; /* rows of the span */
    uint32_t accepted;   /* offset of their list in the strings, or DMI_OUTCOME_FIRST */
    uint32_t id_offset;  /* of the request, where there is no span */
    uint32_t id_bytes;
    uint32_t reason; /* enum dmi_end */
    uint32_t reserved;
};

/* 6.3. An entry of a CHANGES chunk: this, a JSON object, zeros up to a multiple of 8. */
struct dmi_change_entry {
    uint32_t n_bytes; /* of the whole entry */
    uint32_t json_bytes;
    uint64_t number; /* of the change in the run, from 0 */
    uint64_t time_ns;
    uint64_t launch; /* launches and steps (sequences) below these came before it */
    uint64_t step;
};

/* 7. Metadata of a FOOTER chunk: this, then chunks, sites, entries, spans, strings. */
struct dmi_footer {
    uint32_t n_chunks; /* before the footer */
    uint32_t n_entries;
    uint32_t n_spans;
    uint32_t n_string_bytes;
    uint64_t first_sequence;
    uint32_t n_sites;  /* that have records in the segment */
    uint32_t reserved; /* 0 */
};

struct dmi_footer_chunk {
    uint64_t offset; /* of the chunk's header in the file */
    uint32_t type;
    uint32_t n;     /* records, steps; else 0 */
    uint64_t first; /* lowest launch of its records, lowest sequence of its steps; else 0 */
    uint64_t last;  /* the highest; else 0 */
};

/* What the segment holds of a site; ascending by site. */
struct dmi_footer_site {
    uint32_t site;
    uint32_t reserved; /* 0 */
    uint64_t records;
    uint64_t rows;
    uint64_t bytes; /* raw */
};

/* Sorted by site, layer, launch, chunk, record. */
struct dmi_footer_entry {
    uint32_t site;
    int32_t layer;
    uint32_t chunk;  /* index in the table of chunks */
    uint32_t record; /* index in that chunk */
    uint64_t step;
    uint64_t launch;
    uint64_t forward;
    uint32_t occurrence;
    uint32_t rows;
};

/* In the order of the file. */
struct dmi_footer_span {
    uint32_t id_offset; /* in the strings */
    uint32_t id_bytes;
    uint64_t sequence; /* of the step */
    int64_t first_position;
    uint32_t first_row;
    uint32_t n_tokens;
};

/* 7. The last 32 bytes of a closed segment. */
struct dmi_trailer {
    uint64_t footer_offset;
    uint64_t n_file; /* bytes of the whole file */
    uint64_t hash;   /* XXH3 of the 16 bytes before it and the run's UUID */
    uint64_t magic;
};

static_assert(sizeof(struct dmi_segment_header) == 128, "on-disk layout");
static_assert(sizeof(struct dmi_chunk_header) == 64, "on-disk layout");
static_assert(sizeof(struct dmi_records_head) == 16, "on-disk layout");
static_assert(sizeof(struct dmi_record) == 112, "on-disk layout");
static_assert(sizeof(struct dmi_group) == 32, "on-disk layout");
static_assert(sizeof(struct dmi_plane) == 16, "on-disk layout");
static_assert(sizeof(struct dmi_step_entry) == 88, "on-disk layout");
static_assert(sizeof(struct dmi_steps_packed) == 16, "on-disk layout");
static_assert(sizeof(struct dmi_span_entry) == 56 &&
                  offsetof(struct dmi_span_entry, ids_offset) == DMI_SPAN_ENTRY_LEAST,
              "on-disk layout");
static_assert(sizeof(struct dmi_table_head) == 16, "on-disk layout");
static_assert(sizeof(struct dmi_outcome) == 48, "on-disk layout");
static_assert(sizeof(struct dmi_change_entry) == 40, "on-disk layout");
static_assert(sizeof(struct dmi_footer) == 32, "on-disk layout");
static_assert(sizeof(struct dmi_footer_chunk) == 32, "on-disk layout");
static_assert(sizeof(struct dmi_footer_site) == 32, "on-disk layout");
static_assert(sizeof(struct dmi_footer_entry) == 48, "on-disk layout");
static_assert(sizeof(struct dmi_footer_span) == 32, "on-disk layout");
static_assert(sizeof(struct dmi_trailer) == 32, "on-disk layout");
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "these structs are read and written as they are: little-endian machines only"
#endif

#endif
