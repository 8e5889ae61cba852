/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ratio and speed of the codec on activations, compared with plain `zstd -1`, on one core in one run:
 *
 *     bench_codec [--dump FOLDER] INPUT...
 *
 * INPUT is a safetensors file or a run. All float32 in it is measured as it is and converted to bf16
 * (rounded to nearest even); what is bf16 already as it is. --dump writes the very bytes that were
 * measured, f32.bin and bf16.bin, for other programs. Prints figures; asserts only that decoding restores all bytes.
 */
#define ZSTD_STATIC_LINKING_ONLY
#include "core/cleanup.h"
#include "core/clock.h"
#include "read/safetensors.h"
#include "storage/codec/codec.h"
#include "storage/reader/reader.h"

#include <dmi/dtype.h>

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <zstd.h>

#define MOST_BYTES (128u << 20) /* of a dtype: enough for steady figures */
#define ROUNDS     5 /* over all methods; the best of each counts: others use the machine too */
#define LEAST_NS   150000000u /* of CPU time for a method in a round */

struct buffer {
    uint8_t *data;
    size_t n;
};

static int buffer_add(struct buffer *b, const void *data, size_t n)
{
    if (b->n + n > MOST_BYTES)
        n = (MOST_BYTES - b->n) / 8 * 8;
    uint8_t *grown = n ? realloc(b->data, b->n + n) : b->data;
    if (n && !grown)
        return -1;
    if (n)
        memcpy(grown + b->n, data, n);
    b->data = grown;
    b->n += n;
    return 0;
}

static uint16_t bf16_of(uint32_t bits)
{
    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(bits >> 16 | 0x40); /* NaN stays NaN */
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static int convert(const struct buffer *f32, struct buffer *bf16)
{
    for (size_t i = 0; i + 4 <= f32->n; i += 4) {
        uint32_t bits;
        memcpy(&bits, f32->data + i, 4);
        uint16_t v = bf16_of(bits);
        if (!bf16->data && !(bf16->data = malloc(f32->n / 2 + 2)))
            return -1;
        memcpy(bf16->data + bf16->n, &v, 2);
        bf16->n += 2;
    }
    return 0;
}

/* ------------------------------------------------------------------------- methods */

enum method { ZSTD_1, PLANES_ZSTD_1, PLANES, ROTATED, PACKED, STORED, METHODS };

static const char *const method_names[METHODS] = {
    "plain zstd -1, 64 KiB",      "byte planes, zstd -1",
    "byte planes, literals only", "rotated, byte planes, literals only",
    "rotated, exponents packed",  "stored"
};

struct bench {
    struct codec *codec;
    ZSTD_CCtx *cctx;
    ZSTD_DCtx *dctx;
    uint8_t block[DMI_BLOCK_BYTES];
    uint8_t *stored, *back;   /* the same memory for all methods */
    struct dmi_plane *planes; /* 8 a block */
    uint64_t plane_stored[8], plane_raw[8];
};

static void split(const uint8_t *in, uint8_t *out, size_t n, uint32_t element)
{
    for (size_t i = 0; i < n / element; i++)
        for (uint32_t p = 0; p < element; p++)
            out[p * (n / element) + i] = in[i * element + p];
}

static void join(const uint8_t *in, uint8_t *out, size_t n, uint32_t element)
{
    for (size_t i = 0; i < n / element; i++)
        for (uint32_t p = 0; p < element; p++)
            out[i * element + p] = in[p * (n / element) + i];
}

/* zstd at level 1, each piece raw where it does not shrink. */
static size_t zstd_pieces(struct bench *b, const uint8_t *src, size_t n, uint32_t pieces,
                          uint8_t *out, struct dmi_plane *planes)
{
    size_t used = 0;
    for (uint32_t p = 0; p < pieces; p++, src += n / pieces) {
        size_t r =
            ZSTD_compressCCtx(b->cctx, out + used, ZSTD_compressBound(n), src, n / pieces, 1);
        planes[p].codec = DMI_CODEC_ZSTD;
        if (ZSTD_isError(r) || r >= n / pieces) {
            r = n / pieces;
            memcpy(out + used, src, r);
            planes[p].codec = DMI_CODEC_RAW;
        }
        planes[p].n_stored = (uint32_t)r;
        used += r;
    }
    return used;
}

static uint32_t encoding_of(enum method m)
{
    return m == PLANES   ? DMI_ENCODING_PLANES
           : m == STORED ? DMI_ENCODING_RAW
                         : DMI_ENCODING_ROTATED;
}

static uint32_t pieces_of(enum method m, uint32_t element)
{
    return m == ZSTD_1 || m == STORED ? 1 : element;
}

static size_t encode_block(struct bench *b, enum method m, uint32_t element, const uint8_t *in,
                           size_t n, uint8_t *out, struct dmi_plane *planes)
{
    switch (m) {
    case ZSTD_1: return zstd_pieces(b, in, n, 1, out, planes);
    case PLANES_ZSTD_1:
        split(in, b->block, n, element);
        return zstd_pieces(b, b->block, n, element, out, planes);
    default:
        codec_set_rung(b->codec, m == PACKED   ? CODEC_PACKED
                                 : m == STORED ? CODEC_STORED
                                               : CODEC_SMALLEST);
        return codec_encode(b->codec, encoding_of(m), element, in, n, out, planes);
    }
}

static size_t stored_bytes(const struct dmi_plane *planes, uint32_t n)
{
    size_t sum = 0;
    for (uint32_t p = 0; p < n; p++)
        sum += planes[p].n_stored;
    return sum;
}

static int decode_pieces(struct bench *b, const uint8_t *in, const struct dmi_plane *planes,
                         uint32_t pieces, uint8_t *out, size_t n)
{
    for (uint32_t p = 0; p < pieces; p++, out += n / pieces) {
        if (planes[p].codec == DMI_CODEC_RAW)
            memcpy(out, in, n / pieces);
        else if (ZSTD_decompressDCtx(b->dctx, out, n / pieces, in, planes[p].n_stored) !=
                 n / pieces)
            return -1;
        in += planes[p].n_stored;
    }
    return 0;
}

static int decode_block(struct bench *b, enum method m, uint32_t element, const uint8_t *in,
                        const struct dmi_plane *planes, uint8_t *out, size_t n)
{
    uint32_t bad;
    if (m == ZSTD_1)
        return decode_pieces(b, in, planes, 1, out, n);
    if (m == PLANES_ZSTD_1) {
        int r = decode_pieces(b, in, planes, element, b->block, n);
        join(b->block, out, n, element);
        return r;
    }
    return codec_decode(b->codec, encoding_of(m), element, planes, in,
                        stored_bytes(planes, pieces_of(m, element)), out, n, &bad);
}

/* ------------------------------------------------------------------------- measuring */

struct figures {
    double ratio, encode, decode; /* raw GB a second */
    double planes[8];             /* stored of raw */
    int wrong;
};

static void count_planes(struct bench *b, const struct dmi_plane *planes, uint32_t n, size_t raw)
{
    for (uint32_t p = 0; p < n; p++) {
        b->plane_stored[p] += planes[p].n_stored;
        b->plane_raw[p] += raw / n;
    }
}

static struct figures measure(struct bench *b, enum method m, const struct buffer *raw,
                              uint32_t element)
{
    struct figures f = { 0 };
    size_t n_blocks = (raw->n + DMI_BLOCK_BYTES - 1) / DMI_BLOCK_BYTES;
    struct dmi_plane *planes = b->planes;
    uint8_t *stored = b->stored, *back = b->back;
    uint64_t spent = 0, rounds = 0;
    size_t used = 0;
    do {
        uint64_t start = clock_ns(CLOCK_THREAD_CPUTIME_ID);
        used = 0;
        for (size_t i = 0; i < n_blocks; i++) {
            size_t at = i * DMI_BLOCK_BYTES;
            size_t n = raw->n - at < DMI_BLOCK_BYTES ? raw->n - at : DMI_BLOCK_BYTES;
            used += encode_block(b, m, element, raw->data + at, n, stored + used, planes + 8 * i);
        }
        spent += clock_ns(CLOCK_THREAD_CPUTIME_ID) - start;
        rounds++;
    } while (spent < LEAST_NS);
    f.encode = (double)raw->n * (double)rounds / (double)spent;
    f.ratio = (double)raw->n / (double)used;
    spent = rounds = 0;
    do {
        uint64_t start = clock_ns(CLOCK_THREAD_CPUTIME_ID);
        const uint8_t *in = stored;
        for (size_t i = 0; i < n_blocks; i++) {
            size_t at = i * DMI_BLOCK_BYTES;
            size_t n = raw->n - at < DMI_BLOCK_BYTES ? raw->n - at : DMI_BLOCK_BYTES;
            f.wrong |= decode_block(b, m, element, in, planes + 8 * i, back + at, n) != 0;
            in += stored_bytes(planes + 8 * i, pieces_of(m, element));
        }
        spent += clock_ns(CLOCK_THREAD_CPUTIME_ID) - start;
        rounds++;
    } while (spent < LEAST_NS);
    f.decode = (double)raw->n * (double)rounds / (double)spent;
    f.wrong |= memcmp(back, raw->data, raw->n) != 0;
    memset(b->plane_stored, 0, sizeof b->plane_stored);
    memset(b->plane_raw, 0, sizeof b->plane_raw);
    for (size_t i = 0; i < n_blocks; i++) {
        size_t at = i * DMI_BLOCK_BYTES;
        size_t n = raw->n - at < DMI_BLOCK_BYTES ? raw->n - at : DMI_BLOCK_BYTES;
        count_planes(b, planes + 8 * i, pieces_of(m, element), n);
    }
    for (uint32_t p = 0; p < pieces_of(m, element); p++)
        f.planes[p] = (double)b->plane_stored[p] / (double)b->plane_raw[p];
    return f;
}

static int reserve(struct bench *b, size_t n_raw)
{
    size_t n_blocks = (n_raw + DMI_BLOCK_BYTES - 1) / DMI_BLOCK_BYTES;
    free(b->stored);
    free(b->back);
    free(b->planes);
    b->stored = malloc(n_raw + 2 * DMI_BLOCK_BYTES);
    b->back = malloc(n_raw + 1);
    b->planes = calloc(n_blocks + 1, 8 * sizeof *b->planes);
    if (!b->stored || !b->back || !b->planes)
        return -1;
    memset(b->stored, 1, n_raw); /* the pages exist before the clock starts */
    memset(b->back, 1, n_raw);
    return 0;
}

static void print_planes(const struct figures *f, uint32_t element)
{
    printf("    planes, least significant first:");
    for (uint32_t p = 0; p < element; p++)
        printf(" %.3f", f->planes[p]);
    printf(" of raw\n");
}

static int bench_dtype(struct bench *b, const char *name, const struct buffer *raw,
                       uint32_t element)
{
    struct figures best[METHODS] = { { 0 } };
    if (!raw->n)
        return 0;
    if (reserve(b, raw->n))
        return 1;
    for (int round = 0; round < ROUNDS; round++)
        for (int m = 0; m < METHODS; m++) {
            struct figures f = measure(b, (enum method)m, raw, element);
            best[m].ratio = f.ratio;
            best[m].wrong |= f.wrong;
            memcpy(best[m].planes, f.planes, sizeof f.planes);
            best[m].encode = f.encode > best[m].encode ? f.encode : best[m].encode;
            best[m].decode = f.decode > best[m].decode ? f.decode : best[m].decode;
        }
    int wrong = 0;
    printf("%s, %.1f MB, 64 KiB blocks (rates: raw bytes a second of CPU time, best of %d rounds; "
           "ours include XXH3)\n",
           name, (double)raw->n / 1e6, ROUNDS);
    printf("  %-38s %7s %12s %12s %10s\n", "how", "ratio", "encode GB/s", "decode GB/s",
           "x zstd -1");
    for (int m = 0; m < METHODS; m++) {
        printf("  %-38s %7.3f %12.2f %12.2f %10.2f%s\n", method_names[m], best[m].ratio,
               best[m].encode, best[m].decode, best[m].encode / best[ZSTD_1].encode,
               best[m].wrong ? "  WRONG: does not come back" : "");
        wrong |= best[m].wrong;
        if (m == ROTATED)
            print_planes(&best[m], element);
    }
    fflush(stdout);
    return wrong;
}

/* ------------------------------------------------------------------------- input */

static int add_tensor(struct buffer *f32, struct buffer *bf16, uint32_t dtype, const void *data,
                      size_t n)
{
    return dtype == DMI_DTYPE_F32    ? buffer_add(f32, data, n)
           : dtype == DMI_DTYPE_BF16 ? buffer_add(bf16, data, n)
                                     : 0;
}

static int take_safetensors(const char *path, struct buffer *f32, struct buffer *bf16)
{
    struct err err = { 0 };
    _cleanup_(safetensors_deinit) struct safetensors st = { 0 };
    if (safetensors_open(&err, path, &st)) {
        fprintf(stderr, "bench_codec: %s\n", err.msg);
        return -1;
    }
    for (size_t i = 0; i < st.n; i++)
        if (add_tensor(f32, bf16, st.entries[i].dtype, st.entries[i].data, st.entries[i].n_bytes))
            return -1;
    return 0;
}

/* As the writer orders what it gets in one batch, a forward here. */
static int storage_order(const void *pa, const void *pb)
{
    const struct dmi_record *a = &(*(const struct reader_record *const *)pa)->at;
    const struct dmi_record *b = &(*(const struct reader_record *const *)pb)->at;
    if (a->forward != b->forward)
        return a->forward < b->forward ? -1 : 1;
    if (a->site != b->site)
        return a->site < b->site ? -1 : 1;
    if (a->layer != b->layer)
        return a->layer < b->layer ? -1 : 1;
    return a->launch < b->launch ? -1 : a->launch > b->launch;
}

static int take_run(const char *path, struct buffer *f32, struct buffer *bf16)
{
    struct err err = { 0 };
    _cleanup_(reader_closep) struct reader *reader = NULL;
    if (reader_open(&err, path, &reader)) {
        fprintf(stderr, "bench_codec: %s\n", err.msg);
        return -1;
    }
    size_t n = reader_n_records(reader);
    _cleanup_(freep) const struct reader_record **sorted = calloc(n + 1, sizeof *sorted);
    if (!sorted)
        return -1;
    for (size_t i = 0; i < n; i++)
        sorted[i] = reader_record(reader, i);
    qsort(sorted, n, sizeof *sorted, storage_order);
    for (size_t i = 0; i < n; i++) {
        const struct reader_record *rec = sorted[i];
        _cleanup_(freep) void *data = malloc(rec->at.n_bytes + 1);
        if (!data || reader_decode(&err, reader, rec, data)) {
            fprintf(stderr, "bench_codec: %s\n", data ? err.msg : "no memory");
            return -1;
        }
        if (add_tensor(f32, bf16, rec->at.dtype, data, rec->at.n_bytes))
            return -1;
    }
    return 0;
}

static int dump(const char *folder, const char *name, const struct buffer *b)
{
    _cleanup_(freep) char *path = NULL;
    if (asprintf(&path, "%s/%s.bin", folder, name) < 0)
        return -1;
    _cleanup_(fclosep) FILE *f = fopen(path, "wb");
    return f && fwrite(b->data, 1, b->n, f) == b->n ? 0 : -1;
}

int main(int argc, char **argv)
{
    struct buffer f32 = { 0 }, bf16 = { 0 };
    const char *dump_to = NULL;
    int first = 1;
    if (argc > 2 && !strcmp(argv[1], "--dump")) {
        dump_to = argv[2];
        first = 3;
    }
    if (first >= argc) {
        fprintf(stderr, "usage: bench_codec [--dump FOLDER] FILE.safetensors|RUN...\n");
        return 2;
    }
    for (int i = first; i < argc; i++) {
        const char *dot = strrchr(argv[i], '.');
        bool tensors = dot && !strcmp(dot, ".safetensors");
        if (tensors ? take_safetensors(argv[i], &f32, &bf16) : take_run(argv[i], &f32, &bf16))
            return 2;
    }
    if (!bf16.n && convert(&f32, &bf16))
        return 2;
    if (dump_to && (dump(dump_to, "f32", &f32) || dump(dump_to, "bf16", &bf16))) {
        perror(dump_to);
        return 2;
    }
    struct bench *b = calloc(1, sizeof *b);
    if (!b || !(b->codec = codec_new()) || !(b->cctx = ZSTD_createCCtx()) ||
        !(b->dctx = ZSTD_createDCtx()))
        return 2;
    int wrong = bench_dtype(b, "f32", &f32, 4) | bench_dtype(b, "bf16", &bf16, 2);
    ZSTD_freeCCtx(b->cctx);
    ZSTD_freeDCtx(b->dctx);
    codec_free(b->codec);
    free(b->stored);
    free(b->back);
    free(b->planes);
    free(b);
    free(f32.data);
    free(bf16.data);
    return wrong;
}
