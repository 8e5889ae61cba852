/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libdmi_analyze.so: answers that need nothing but what was captured, computed from runs that libdmi_read.so has open
 * (<dmi/read.h>). docs/attention.md has formulas, sources and limits.
 *
 *     struct dmi_analyze *answer;
 *     char why[512];
 *     struct dmi_analyze_options options = { .size = sizeof options, .request = "r1", .request_bytes = 2 };
 *     if (dmi_analyze_open(run, &options, &answer, why, sizeof why))
 *         die(why);
 *     if (dmi_analyze_attention(answer, take_rows, NULL))
 *         die(dmi_analyze_error(answer));
 *     dmi_analyze_close(answer);
 *
 * An answer proves itself: where v and z were captured, attention's weights times v must be z. dmi_analyze_proof() has how far it is
 * off, for each layer and head, and whether that is refused.
 *
 * Functions return 0 (or what they say) on success and -errno on failure; dmi_analyze_error() then has a sentence. An answer, and the
 * runs that it reads, are for one thread at a time. Refreshing or selecting in one of its runs ends an answer: only
 * dmi_analyze_close() is of use then. The library prints nothing and ends no process.
 *
 * Numbers do not depend on the memory or the number of threads that a caller allows: they are equal to the bit.
 *
 * The ABI is stable: functions are only added, fields only at the end of structs. Each struct that a caller makes begins with its
 * size, which the caller sets to sizeof. The library writes only that much, and sets to 0 what a newer caller's struct has beyond the
 * library's own.
 */
#ifndef DMI_ANALYZE_H
#define DMI_ANALYZE_H

#include <dmi/read.h>

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DMI_ANALYZE_VERSION 1

#if defined(__GNUC__)
#define DMI_ANALYZE_API __attribute__((visibility("default")))
#else
#define DMI_ANALYZE_API
#endif

/* What a model's config says of its attention. */
struct dmi_analyze_model;

/* An answer about one request. */
struct dmi_analyze;

/* A head; layer -1: of every layer. */
struct dmi_analyze_head {
    int32_t layer;
    uint32_t head;
};

/* The sites that hold what attention reads and makes; NULL: DMI's own name, which is that of the field. */
struct dmi_analyze_sites {
    const char *q_rot, *k_rot;   /* after RoPE */
    const char *q_norm, *k_norm; /* before it, after a norm by head */
    const char *q, *k;           /* before both */
    const char *v, *z;
};

/* Which dimensions of a head RoPE turns together. */
enum dmi_analyze_order {
    DMI_ANALYZE_AS_KNOWN = 0, /* as the config and the model's type say */
    DMI_ANALYZE_HALVES = 1,   /* i and i + half of those that turn */
    DMI_ANALYZE_PAIRS = 2,    /* 2i and 2i + 1 */
};

/* About which request, and which part of it. Zeroed but for the size it means all of the only request. */
struct dmi_analyze_options {
    uint32_t size;
    uint32_t n_threads;  /* that compute; 0: the caller's alone */
    const char *request; /* any bytes; NULL: the only one */
    uint64_t request_bytes;
    const char *layers;                   /* words, as of struct dmi_read_selection; NULL: all */
    const struct dmi_analyze_head *heads; /* NULL: all */
    uint64_t n_heads;
    const int64_t *queries; /* positions, ascending; NULL: all that have a row */
    uint64_t n_queries;
    struct dmi_analyze_sites sites;
    const struct dmi_analyze_model *
        model; /* borrowed until the answer is closed; NULL: what an adapter noted in the run, if one did */
    double multiplier; /* of scores; 0: the model's, else 1 / square root of a head's elements */
    uint64_t
        n_memory; /* bytes for keys, values and rows; 0: 3 MiB, or what twenty rows of a KV head's heads need, up to 256 MiB. What four rows of a KV head's heads need is taken in any case */
    uint32_t rope_order; /* enum dmi_analyze_order */
    uint32_t reserved;
    struct dmi_read *
        prefix; /* keys and values of positions that the request lacks, from a request of this run; NULL: none */
    const char *prefix_request; /* any bytes; NULL: the only one */
    uint64_t prefix_request_bytes;
};

/* What an answer is about. */
struct dmi_analyze_shape {
    uint32_t size;
    uint32_t n_layers, n_heads,
        n_kv_heads;          /* captured; what a model's config contradicts is refused */
    uint32_t dim, value_dim; /* elements of a head of q and k, of v and z */
    uint64_t n_queries;
    int64_t n_keys;      /* positions 0 to before it: one more than the last query */
    double multiplier;   /* that scores are computed with */
    const char *request; /* any bytes, not terminated; NULL: the rows are of none */
    uint64_t request_bytes;
    const int64_t *queries; /* n_queries positions, ascending */
    uint64_t n_borrowed;    /* positions whose keys or values another request computed */
};

enum dmi_analyze_state {
    DMI_ANALYZE_UNCHECKED = 0, /* v or z was not captured, or nothing was computed yet */
    DMI_ANALYZE_HOLDS = 1,
    DMI_ANALYZE_FAILS =
        2, /* weights times v are not z: what was computed is not what the model did */
};

/* Whether weights times v are z: norms of all rows of a head together. */
struct dmi_analyze_proof {
    uint32_t size;
    uint32_t state;   /* enum dmi_analyze_state */
    double error;     /* norm of the difference / norm of z; NaN where a number is not finite */
    double worst_row; /* the same of the one row that is furthest off */
    double
        bound; /* above which @error is refused: by the type that q, k, v and z were captured in */
    uint64_t n_rows; /* that were compared, heads apart */
    int32_t layer;   /* of the head that is furthest off, where the proof is of several */
    uint32_t head;
};

/* Consecutive queries of one head. */
struct dmi_analyze_rows {
    uint32_t size;
    int32_t layer;
    uint32_t head;
    uint32_t n;             /* queries */
    uint64_t first_query;   /* index of the first one in struct dmi_analyze_shape's queries */
    const int64_t *queries; /* their positions */
    const float *
        weights; /* n rows, each @stride floats after the last: a weight a key, 0 for keys that it does not see */
    uint64_t stride;
};

/* Takes weights, which are borrowed during the call. Layers come in order, and rows of a head do; heads may come side by side or one after the other. Return: 0 to go on, else what ends it. */
typedef int dmi_analyze_take(void *arg, const struct dmi_analyze_rows *rows);

/* Return: DMI_ANALYZE_VERSION of the library. Any thread. */
DMI_ANALYZE_API uint32_t dmi_analyze_version(void);

/**
 * dmi_analyze_model_open() - what a model's config says of its attention
 * @path: a config.json of Hugging Face's, a folder that has one, or a GGUF, of which the header is read
 * @why: gets a sentence on failure, cut to @n_why bytes; may be NULL
 * Return: 0; -EINVAL (no config), -errno. Any thread.
 */
DMI_ANALYZE_API int dmi_analyze_model_open(const char *path, struct dmi_analyze_model **out,
                                           char *why, uint64_t n_why);
/* Accepts NULL. */
DMI_ANALYZE_API void dmi_analyze_model_close(struct dmi_analyze_model *model);

/**
 * dmi_analyze_open() - find what an answer needs, and refuse what cannot be answered
 * @run: borrowed until dmi_analyze_close(). What it has selected is what there is: rows of cached tokens, if it selects these
 * It reads where rows are and no values. A position that a query sees and that has no row of k is a refusal by name.
 * Return: 0; -ENOENT (no such request or layer), -EINVAL (no such head, what cannot be), -ENODATA (rows or knowledge that lack), -errno.
 */
DMI_ANALYZE_API int dmi_analyze_open(struct dmi_read *run,
                                     const struct dmi_analyze_options *options,
                                     struct dmi_analyze **out, char *why, uint64_t n_why);
/* Accepts NULL. */
DMI_ANALYZE_API void dmi_analyze_close(struct dmi_analyze *answer);

/* Return: the sentence of the last call that failed on this answer; "" if none did. */
DMI_ANALYZE_API const char *dmi_analyze_error(const struct dmi_analyze *answer);

/* Fills @out, whose size the caller has set; pointers live until dmi_analyze_close(). Return: 0 or -EINVAL. */
DMI_ANALYZE_API int dmi_analyze_shape(struct dmi_analyze *answer, struct dmi_analyze_shape *out);

/* The number of a layer by its index. Return: -ENOENT: no such index. */
DMI_ANALYZE_API int32_t dmi_analyze_layer(struct dmi_analyze *answer, uint64_t index);

/**
 * dmi_analyze_attention() - compute the weights of all heads and queries that were asked for
 * @take: gets them layer by layer, some queries at a time; NULL: only the proof is wanted
 * Where it fails, or @take ends it, the proof is of what was computed until then.
 * Return: 0; -EBADMSG (damaged rows), -ENOMEM, -errno; what @take returned.
 */
DMI_ANALYZE_API int dmi_analyze_attention(struct dmi_analyze *answer, dmi_analyze_take *take,
                                          void *arg);

/**
 * dmi_analyze_proof() - whether what was computed is what the model did
 * @layer: -1: of all layers together; else of this one
 * @head: -1: of all heads that were computed together
 * For several heads, @out gets the proof of the head that is furthest off. Return: 0; -ENOENT (no such layer or head), -EINVAL.
 */
DMI_ANALYZE_API int dmi_analyze_proof(struct dmi_analyze *answer, int32_t layer, int64_t head,
                                      struct dmi_analyze_proof *out);

#ifdef __cplusplus
}
#endif

#endif
