/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/sites/recording.h"

#include "core/bytes.h"
#include "core/cleanup.h"
#include "core/err.h"
#include "core/grow.h"
#include "core/regular.h"
#include "core/whole.h"
#include "storage/codec/hash.h"
#include "tools/sites/printable.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <zstd.h>

/*
 * Memory that a recording may ask for: what its bytes are when they are decompressed, and what names them. That of a model compresses
 * by 1.1 to 30, so only a file that was built to harm asks for more.
 */
#define MOST_FREE   (1ull << 30)
#define MOST_FACTOR 64u
#define OF_A_RUN    64u  /* bytes */
#define OF_A_PAGE   160u /* the same: of each page that a run touches (memory.c) */
#define OF_A_NAME   128u /* the same: of a kernel, of a launch */

/* Before memory is asked for. Return: 0 or an error in @err. */
static int charge(struct err *err, struct recording *rec, uint64_t n)
{
    uint64_t most = MOST_FREE + MOST_FACTOR * (uint64_t)rec->n_map;
    if (n <= most - rec->n_asked) {
        rec->n_asked += n;
        return 0;
    }
    return err_set(
        err, -E2BIG,
        "the recording asks for more than %llu MiB of memory, which is 1 GiB and %u times "
        "its size: it is not one of this program's, or record less (--budget)",
        (unsigned long long)(most >> 20), MOST_FACTOR);
}

/* A copy of @n bytes, aligned for what they are, that the recording owns. Return: NULL without memory. */
static void *own_copy(struct recording *rec, const void *from, size_t n)
{
    if (grow((void **)&rec->owned, rec->n_owned, &rec->room_owned, sizeof *rec->owned, 64))
        return NULL;
    void *copy = malloc(n + 1);
    if (!copy)
        return NULL;
    rec->owned[rec->n_owned++] = copy;
    return memcpy(copy, from, n);
}

static int bad(struct err *err, const char *what)
{
    return err_set(err, -EINVAL, "the recording is damaged: %s", what);
}

/* ------------------------------------------------------------------------- chunks */

static int add_kernel(struct err *err, struct recording *rec, struct bytes rest)
{
    struct dmi_recording_kernel head;
    const void *from = bytes_take(&rest, sizeof head);
    if (!from)
        return bad(err, "a kernel is cut off");
    memcpy(&head, from, sizeof head);
    bool known = head.n_params != DMI_RECORDING_NO_LAYOUT;
    const void *params =
        bytes_take(&rest, known ? (uint64_t)head.n_params * sizeof(struct dmi_recording_param) : 0);
    if (!params || head.id != rec->n_kernels)
        return bad(err, "a kernel's parameters");
    TRY(charge(err, rec, OF_A_NAME + rest.n + (known ? 8ull * head.n_params : 0)));
    params = own_copy(rec, params, known ? head.n_params * sizeof(struct dmi_recording_param) : 0);
    char *name = printable_name(strndup((const char *)rest.at, rest.n));
    if (!params || !name ||
        grow((void **)&rec->kernels, rec->n_kernels, &rec->room_kernels, sizeof *rec->kernels,
             64)) {
        free(name);
        return err_set(err, -ENOMEM, "no memory");
    }
    rec->kernels[rec->n_kernels++] = (struct rec_kernel){ name, head.n_params, params };
    return 0;
}

static int add_launch(struct err *err, struct recording *rec, struct bytes rest)
{
    struct rec_launch launch = { .first_run = rec->n_runs };
    const void *from = bytes_take(&rest, sizeof launch.head);
    if (!from)
        return bad(err, "a launch is cut off");
    memcpy(&launch.head, from, sizeof launch.head);
    launch.pointers = bytes_take(&rest, (uint64_t)launch.head.n_pointers * sizeof *launch.pointers);
    launch.params = bytes_take(&rest, launch.head.n_params);
    if (!launch.pointers || !launch.params || launch.head.kernel >= rec->n_kernels ||
        launch.head.sequence != rec->n_launches)
        return bad(err, "a launch");
    TRY(charge(err, rec, OF_A_NAME + launch.head.n_pointers * sizeof *launch.pointers));
    launch.pointers =
        own_copy(rec, launch.pointers, launch.head.n_pointers * sizeof *launch.pointers);
    if (!launch.pointers)
        return err_set(err, -ENOMEM, "no memory");
    for (uint32_t i = 0; i < launch.head.n_pointers; i++)
        if ((uint64_t)launch.pointers[i].offset + 8 > launch.head.n_params)
            return bad(err, "a pointer's place");
    if (grow((void **)&rec->launches, rec->n_launches, &rec->room_launches, sizeof *rec->launches,
             1024))
        return err_set(err, -ENOMEM, "no memory");
    rec->launches[rec->n_launches++] = launch;
    return 0;
}

static int add_run(struct err *err, struct recording *rec, const struct dmi_recording_run *run,
                   uint64_t time, struct bytes *rest)
{
    const void *data = bytes_take(rest, run->n_bytes);
    if (!data || !run->n_bytes || run->address + run->n_bytes < run->address)
        return bad(err, "bytes of memory");
    TRY(charge(err, rec, OF_A_RUN + OF_A_PAGE * (run->n_bytes / 4096 + 1)));
    if (PUSH(rec->runs, rec->n_runs, rec->room_runs, 1024,
             (struct rec_run){ run->address, run->n_bytes, time, data }))
        return err_set(err, -ENOMEM, "no memory");
    return 0;
}

static int add_bytes(struct err *err, struct recording *rec, struct bytes rest)
{
    struct dmi_recording_bytes head;
    const void *from = bytes_take(&rest, sizeof head);
    if (!from)
        return bad(err, "bytes are cut off");
    memcpy(&head, from, sizeof head);
    const uint8_t *runs =
        bytes_take(&rest, (uint64_t)head.n_runs * sizeof(struct dmi_recording_run));
    /* those of a launch follow it, those before it come first */
    if (!runs || head.after > 1 || head.sequence + head.after != rec->n_launches)
        return bad(err, "bytes of another launch");
    uint64_t time = head.after ? REC_AFTER(head.sequence) : REC_BEFORE(head.sequence);
    for (uint32_t i = 0; i < head.n_runs; i++) {
        struct dmi_recording_run run;
        memcpy(&run, runs + i * sizeof run, sizeof run);
        TRY(add_run(err, rec, &run, time, &rest));
    }
    if (head.after) {
        struct rec_launch *launch = &rec->launches[head.sequence];
        launch->n_runs = rec->n_runs - launch->first_run;
    }
    return 0;
}

static int add_unseen(struct err *err, struct recording *rec, struct bytes rest)
{
    TRY(charge(err, rec, OF_A_NAME + rest.n));
    if (grow((void **)&rec->unseen, rec->n_unseen, &rec->room_unseen, sizeof *rec->unseen, 16))
        return err_set(err, -ENOMEM, "no memory");
    char *text = strndup((const char *)rest.at, rest.n);
    if (text)
        rec->unseen[rec->n_unseen++] = text;
    return text ? 0 : err_set(err, -ENOMEM, "no memory");
}

static int add_end(struct err *err, struct recording *rec, struct bytes rest)
{
    const void *from = bytes_take(&rest, sizeof rec->end);
    if (!from)
        return bad(err, "its end is cut off");
    memcpy(&rec->end, from, sizeof rec->end);
    rec->ended = true;
    return 0;
}

static int add_chunk(struct err *err, struct recording *rec, uint32_t type, struct bytes rest)
{
    switch (type) {
    case DMI_RECORDING_KERNEL: return add_kernel(err, rec, rest);
    case DMI_RECORDING_LAUNCH: return add_launch(err, rec, rest);
    case DMI_RECORDING_BYTES: return add_bytes(err, rec, rest);
    case DMI_RECORDING_UNSEEN: return add_unseen(err, rec, rest);
    case DMI_RECORDING_END: return add_end(err, rec, rest);
    default: return bad(err, "a chunk of unknown type");
    }
}

/* ------------------------------------------------------------------------- the file */

static int decompress(struct err *err, struct recording *rec, uint64_t n_plain, struct bytes *rest)
{
    if (n_plain > DMI_RECORDING_MAX_CHUNK)
        return bad(err, "a chunk is too large");
    TRY(charge(err, rec, n_plain));
    if (grow((void **)&rec->owned, rec->n_owned, &rec->room_owned, sizeof *rec->owned, 64))
        return err_set(err, -ENOMEM, "no memory");
    void *plain = malloc((size_t)n_plain);
    if (!plain)
        return err_set(err, -ENOMEM, "no memory");
    rec->owned[rec->n_owned++] = plain;
    if (ZSTD_decompress(plain, (size_t)n_plain, rest->at, rest->n) != n_plain)
        return bad(err, "a chunk cannot be decompressed");
    *rest = (struct bytes){ plain, (size_t)n_plain };
    return 0;
}

/* The next chunk; *@cut: there is none, or not all of it. */
static int read_chunk(struct err *err, struct recording *rec, struct bytes *file, bool *cut)
{
    struct dmi_recording_chunk chunk;
    const void *from = bytes_take(file, sizeof chunk);
    if (from)
        memcpy(&chunk, from, sizeof chunk);
    const void *stored = from ? bytes_take(file, chunk.n_stored) : NULL;
    *cut = !stored;
    if (!stored)
        return 0;
    struct bytes rest = { stored, (size_t)chunk.n_stored };
    if (hash_bytes(rest.at, rest.n) != chunk.hash)
        return bad(err, "a chunk has another checksum");
    int r = chunk.n_plain ? decompress(err, rec, chunk.n_plain, &rest) : 0;
    return r ? r : add_chunk(err, rec, chunk.type, rest);
}

static int read_header(struct err *err, struct bytes *file)
{
    struct dmi_recording_header header;
    const void *from = bytes_take(file, sizeof header);
    if (from)
        memcpy(&header, from, sizeof header);
    if (!from || header.magic != DMI_RECORDING_MAGIC)
        return err_set(err, -EINVAL, "this is no recording");
    if (header.version != DMI_RECORDING_VERSION || header.header_bytes < sizeof header ||
        !bytes_take(file, header.header_bytes - sizeof header))
        return err_set(err, -EINVAL, "a recording of version %u; this program reads %u",
                       header.version, DMI_RECORDING_VERSION);
    return 0;
}

bool recording_is(const char *path)
{
    struct err unused = { 0 };
    uint64_t magic = 0, n;
    _cleanup_(closep) int fd = regular_open(&unused, path, INT64_MAX, &n);
    return fd >= 0 && !whole_read(fd, &magic, sizeof magic, 0) && magic == DMI_RECORDING_MAGIC;
}

int recording_open(struct err *err, const char *path, struct recording *rec)
{
    *rec = (struct recording){ 0 };
    if (!(rec->map = regular_map(err, path, &rec->n_map)))
        return err->code;
    struct bytes file = { rec->map, rec->n_map };
    bool cut = false;
    int r = read_header(err, &file);
    while (!r && !rec->ended && !cut)
        r = read_chunk(err, rec, &file, &cut);
    if (r) {
        err_prefix(err, "%s", path);
        recording_deinit(rec);
    }
    return r;
}

void recording_deinit(struct recording *rec)
{
    if (rec->map)
        munmap(rec->map, rec->n_map);
    for (size_t i = 0; i < rec->n_kernels; i++)
        free(rec->kernels[i].name);
    for (size_t i = 0; i < rec->n_owned; i++)
        free(rec->owned[i]);
    for (size_t i = 0; i < rec->n_unseen; i++)
        free(rec->unseen[i]);
    free(rec->kernels);
    free(rec->launches);
    free(rec->runs);
    free(rec->owned);
    free(rec->unseen);
    *rec = (struct recording){ 0 };
}

const char *recording_name(const struct recording *rec, const struct rec_launch *launch)
{
    return rec->kernels[launch->head.kernel].name;
}
