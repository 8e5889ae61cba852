/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file of a recording: what every launch of a program was given, and what it wrote. libdmi_preload.so writes it,
 * dmi-sites reads it. Little-endian; a header, then chunks one after the other. Source: docs/sites.md, "The file".
 */
#ifndef DMI_RECORDING_H
#define DMI_RECORDING_H

#include <assert.h>
#include <stdint.h>

#define DMI_RECORDING_MAGIC      0x31434552494d44ull /* "DMIREC1" and a zero byte */
#define DMI_RECORDING_VERSION    1
#define DMI_RECORDING_BLOCK      4096u       /* bytes that are compared at once */
#define DMI_RECORDING_MAX_CHUNK  (64u << 20) /* bytes of a chunk, decompressed */
#define DMI_RECORDING_MAX_PARAMS 32764u      /* bytes of a kernel's parameters */
#define DMI_RECORDING_NO_LAYOUT  UINT32_MAX  /* it is not known where the kernel's parameters lie */

struct dmi_recording_header {
    uint64_t magic;
    uint32_t version;
    uint32_t header_bytes; /* of this struct */
    uint64_t pid;
    uint8_t reserved[40];
};
static_assert(sizeof(struct dmi_recording_header) == 64, "header of a recording");

enum dmi_recording_type {
    DMI_RECORDING_KERNEL = 1, /* a kernel that later launches name by its number */
    DMI_RECORDING_LAUNCH = 2, /* one launch of it */
    DMI_RECORDING_BYTES = 3,  /* what memory held, where it was another than last known */
    DMI_RECORDING_UNSEEN = 4, /* text: what ran, and is not in the recording */
    DMI_RECORDING_END = 5,    /* the last chunk of a recording that was closed */
};

struct dmi_recording_chunk {
    uint32_t type;
    uint32_t reserved;
    uint64_t n_stored; /* bytes that follow */
    uint64_t n_plain;  /* bytes of what a zstd frame gives, 0: the bytes are as they are */
    uint64_t hash;     /* XXH3 of the bytes that follow */
};
static_assert(sizeof(struct dmi_recording_chunk) == 32, "chunk of a recording");

/* Then @n_params times struct dmi_recording_param, then the name, which fills the chunk. */
struct dmi_recording_kernel {
    uint32_t id; /* counts from 0 */
    uint32_t n_params;
};

struct dmi_recording_param {
    uint32_t offset, size; /* bytes, in the packed buffer */
};

#define DMI_RECORDING_IN_GRAPH 1u

/* Then @n_pointers times struct dmi_recording_pointer, then @n_params bytes: all parameters, packed. */
struct dmi_recording_launch {
    uint64_t sequence; /* counts from 0 */
    uint32_t kernel;
    uint32_t flags; /* DMI_RECORDING_IN_GRAPH: it was a node of a graph */
    uint32_t grid[3], block[3];
    uint32_t shared_bytes;
    uint32_t n_pointers;
    uint32_t n_params;
    uint32_t reserved;
};
static_assert(sizeof(struct dmi_recording_launch) == 56, "launch of a recording");

/* An address among a launch's parameters that lies in a live allocation. */
struct dmi_recording_pointer {
    uint32_t offset; /* in the packed parameters */
    uint32_t reserved;
    uint64_t address;
    uint64_t base, n_bytes; /* of the allocation */
};
static_assert(sizeof(struct dmi_recording_pointer) == 32, "pointer of a recording");

/* Then @n_runs times struct dmi_recording_run, then their bytes, one after the other. */
struct dmi_recording_bytes {
    uint64_t sequence; /* of the launch */
    uint32_t after;    /* 1: read after that launch, which wrote them; 0: before it */
    uint32_t n_runs;
};

struct dmi_recording_run {
    uint64_t address, n_bytes;
};

enum dmi_recording_reason {
    DMI_RECORDING_EXIT = 0,     /* the program ended */
    DMI_RECORDING_FORWARDS = 1, /* so many forwards as were asked for */
    DMI_RECORDING_BUDGET = 2,   /* so many bytes as were asked for */
    DMI_RECORDING_ERROR = 3,    /* the driver or the disk refused something */
};

struct dmi_recording_end {
    uint64_t n_launches;
    uint32_t reason;
    uint32_t n_unseen; /* launches of graphs that could not be looked into */
};

#endif
