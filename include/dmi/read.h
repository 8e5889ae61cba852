/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libdmi_read.so: runs that DMI captured, as users see them. A run is a list of tensors; each holds the rows that were
 * captured under one name, for one layer and one request, in the order of their positions.
 *
 *     struct dmi_read *run;
 *     char why[256];
 *     if (dmi_read_open("out", &run, why, sizeof why))
 *         die(why);
 *     struct dmi_read_tensor t = { .size = sizeof t };
 *     int64_t index = dmi_read_find(run, "france/q.3");
 *     if (index >= 0 && !dmi_read_tensor(run, (uint64_t)index, &t))
 *         dmi_read_rows(run, (uint64_t)index, 0, t.n_rows, buffer, t.n_rows * t.row_bytes, NULL, 0);
 *     dmi_read_close(run);
 *
 * A run can be read while it is written, after a kill, and where it is damaged. The reader gives what is undamaged, and a
 * finding for the rest. It trusts nothing in the files.
 *
 * Functions return 0 (or what they say) on success and -errno on failure; dmi_read_error() then has a sentence. A handle
 * is for one thread at a time; several handles are independent. The handle owns the pointers that it hands out, until
 * dmi_read_refresh() or dmi_read_close(). The library prints nothing and ends no process.
 *
 * The ABI is stable: functions are only added, fields only at the end of structs. Each struct begins with its size, which
 * the caller sets to sizeof. The library writes only that much, and sets to 0 what a newer caller's struct has beyond the
 * library's own.
 */
#ifndef DMI_READ_H
#define DMI_READ_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DMI_READ_VERSION 1

#if defined(__GNUC__)
#define DMI_READ_API __attribute__((visibility("default")))
#else
#define DMI_READ_API
#endif

/* A run that is open. */
struct dmi_read;

enum dmi_read_state {
    DMI_READ_CLOSED = 0,  /* closed cleanly: all is there */
    DMI_READ_RUNNING = 1, /* a process still writes it */
    DMI_READ_KILLED = 2,  /* its process ended without closing it */
};

/* What a run is, and how much is in it. Strings are UTF-8 or NULL: not known. */
struct dmi_read_run {
    uint32_t size;
    uint32_t state;   /* enum dmi_read_state */
    const char *path; /* of its folder, or of the lone segment that was opened */
    const char *uuid, *model, *host, *library_version;
    uint64_t pid, start_realtime_ns;
    uint64_t n_segments, file_bytes;
    uint64_t n_sites, n_records, n_steps, n_tensors, n_requests, n_findings;
    uint64_t n_forwards; /* that the process counted; 0 where the counters cannot be read */
    const char *job;     /* one id for all processes of one command */
    uint64_t n_runs;     /* that were joined: one, or those of a command's ranks */
    uint64_t
        n_beside; /* runs of earlier commands in the folder that was opened: they are passed over */
};

/* An entry of the run's site dictionary. Several may share a name: variants of one tensor. */
struct dmi_read_site {
    uint32_t size;
    uint32_t dtype;                   /* enum dmi_dtype, <dmi/dtype.h>; a tensor's own decides */
    const char *name;                 /* may hold "{layer}" */
    const char *kernel, *kind, *note; /* NULL: not said */
    double scale;                     /* stored value = true value * scale */
    int64_t expect;                   /* matching launches a forward, -1: not declared */
    uint32_t row;                     /* enum dmi_row, <dmi/site.h> */
    uint32_t has_layer;               /* 1: its records carry a layer */
    uint32_t writes;                  /* 1: edits may write here, and there are no records of it */
    uint32_t reserved;
};

struct dmi_read_tally {
    uint64_t records, rows, bytes;
};

/* Whether the accounting of a site balances: captured + released + dropped + lost = expected. */
struct dmi_read_account {
    uint32_t size;
    uint32_t known;    /* 1: the counters can be read; else only @captured is filled */
    uint32_t balances; /* 1: it does; a run that goes on always does */
    uint32_t reserved;
    struct dmi_read_tally expected, captured, dropped;
    struct dmi_read_tally lost;     /* lost at a kill, or still on its way in a run that goes on */
    uint64_t dropped_by[16];        /* records, by enum dmi_drop, <dmi/counters.h> */
    uint64_t launches;              /* that matched the site's kernel */
    struct dmi_read_tally released; /* captured, and deleted on purpose with their segment since */
};

struct dmi_read_tensor {
    uint32_t size;
    uint32_t dtype;      /* enum dmi_dtype */
    const char *key;     /* REQUEST/SITE.LAYER, or SITE.LAYER: UTF-8, unique in the run */
    const char *name;    /* the part of @key after the request */
    const char *request; /* any bytes, not terminated; NULL: none */
    uint64_t request_bytes;
    uint64_t n_rows, width, row_bytes; /* elements of a row, bytes of one */
    uint32_t site;                     /* index for dmi_read_site() */
    int32_t layer;                     /* -1: none */
    uint32_t n_dims;                   /* of a row: how many of @dims are used */
    uint32_t dims[4];                  /* their product is @width */
    uint32_t
        mixed; /* 1: type or width changes from record to record, and each row has its own, struct dmi_read_row; 2: the scale
                       does: each row has that of its site */
};

enum dmi_read_row_flags {
    DMI_READ_ROW_DAMAGED = 1,    /* it cannot be decoded: its bytes are 0 */
    DMI_READ_ROW_REJECTED = 2,   /* a draft that was rejected; only where it was asked for */
    DMI_READ_ROW_SUPERSEDED = 4, /* its position was computed again; only where it was asked for */
    DMI_READ_ROW_EDITED = 8,     /* an edit wrote it, or may have: dmi_read_edit() says which */
};

/* Where a row comes from. */
struct dmi_read_row {
    int64_t position; /* of its token in the request, -1: not known */
    uint64_t launch, forward;
    uint64_t step;    /* the engine's own step number; UINT64_MAX: none */
    uint64_t time_ns; /* CLOCK_REALTIME when the launch was handed to the driver */
    uint32_t row;     /* in the launch */
    uint32_t device;  /* CUDA device ordinal */
    uint32_t flags;   /* enum dmi_read_row_flags */
    uint32_t site;    /* index for dmi_read_site(): the entry that says the row's scale */
    uint32_t
        donor; /* 1 + index for dmi_read_request(): the request whose row this is, where that is not the tensor's; else 0 */
    uint32_t
        dtype; /* enum dmi_dtype of this row, and its dimensions: in a mixed tensor not those of the others */
    uint32_t n_dims;
    uint32_t dims[4];
    uint32_t reserved;
};

#define DMI_READ_NOBODY UINT64_MAX /* in place of a request's index: rows of no request */

/*
 * What an edit wrote in a request (docs/edits.md). All that the request computed after it, in later layers and at later positions, was
 * computed with it.
 */
struct dmi_read_edit {
    uint32_t size;
    uint32_t known;   /* 1: its text can be read; 0: it may have written all layers and positions */
    const char *name; /* NULL: edits may have been in force, and the run does not say which */
    const char *site; /* the place that it writes; NULL as @name */
    const char *layers; /* words; "all": in each that its place has */
    const char *text;   /* all of it, to stand in a sentence */
    int64_t first, end; /* positions: from the first that it wrote to after the last */
    uint64_t due,
        written;  /* rows, each once at each place and layer; UINT64_MAX: all were written */
    uint64_t uid; /* of the edit, in the process that made the run */
};

enum dmi_read_request_state {
    DMI_READ_REQUEST_RUNNING = 0,
    DMI_READ_REQUEST_FINISHED = 1,
    DMI_READ_REQUEST_ABORTED = 2,
    DMI_READ_REQUEST_PREEMPTED = 3, /* its positions went back, and it has not come as far again */
};

/* What the engine said of one request. */
struct dmi_read_request {
    uint32_t size;
    uint32_t reserved;
    const char *id; /* any bytes, not terminated */
    uint64_t id_bytes;
    uint64_t n_steps;
    uint64_t n_cached;                     /* tokens that a prefix cache had: never computed */
    uint64_t n_prefill, n_decode, n_draft; /* tokens computed, by phase */
    uint64_t n_other;                      /* tokens computed in an unknown phase */
    int64_t end_position;                  /* after its last token that counts */
    uint32_t state;                        /* enum dmi_read_request_state */
    uint32_t reason;                       /* enum dmi_end, <dmi/dmi.h>, once it ended */
    int64_t n_prompt;                      /* where generation begins; -1: not known */
    uint64_t n_generated;                  /* positions from there on */
    uint64_t n_rejected;                   /* of the drafts */
    uint64_t n_preemptions;
    /* what its capture cost, rejected and superseded rows included */
    uint64_t n_records, n_rows, raw_bytes;
    uint64_t stored_bytes; /* its share of bytes in the files */
    int64_t
        shed_step; /* first step without its rows, as they were shed (the engine's number); -1: none */
    const char *
        tags; /* the latest that a span of it said, as the engine gave them; not terminated; NULL: none */
    uint64_t tags_bytes;
};

enum dmi_read_tokens {
    DMI_READ_TOKENS_ALL = 0,
    DMI_READ_TOKENS_RANGE = 1,     /* positions @first to before @end */
    DMI_READ_TOKENS_PROMPT = 2,    /* before the first that was generated */
    DMI_READ_TOKENS_GENERATED = 3, /* from there on */
    DMI_READ_TOKENS_LAST = 4,      /* the last that counts */
};

enum dmi_read_selection_flags {
    DMI_READ_REJECTED = 1,   /* rows whose drafts were rejected, too */
    DMI_READ_SUPERSEDED = 2, /* rows whose position was computed again, too */
    /*
     * Rows of tokens that a prefix cache had, from the first request that computed them with the same ids at every position
     * from 0 on. Needs the site token_ids and an engine that said the ids; sites with a row a token.
     */
    DMI_READ_FILL_CACHED = 4,
};

/* Any bytes. */
struct dmi_read_name {
    const char *text;
    uint64_t bytes;
};

/*
 * Which tensors there are, and which of their rows. Lists of words, separated by commas, are written as in the options of
 * dmi-dump (docs/selections.md): layers "0,3-7,last", positions "-2:", "prompt,5:9".
 */
struct dmi_read_selection {
    uint32_t size;
    uint32_t flags;      /* enum dmi_read_selection_flags */
    const char *request; /* any bytes; NULL: all. Tensors without a request belong to every one */
    uint64_t request_bytes;
    uint32_t tokens; /* enum dmi_read_tokens, of each request */
    uint32_t reserved;
    int64_t first, end;
    uint32_t ranks[4]; /* only runs of these ranks, by tp, pp, dp, ep: 1 + the rank; 0: any */
    const struct dmi_read_name *requests; /* these too, beside @request */
    uint64_t n_requests;
    const struct dmi_read_name *sites; /* a site's name, or a tensor's; 0: all */
    uint64_t n_sites;
    const char *layers;    /* words; NULL: all */
    const char *positions; /* words, beside @tokens; NULL: none */
};

/* Something that a reader should know. */
struct dmi_read_finding {
    uint32_t size;
    uint32_t damage;  /* 0: worth a note, nothing is wrong (a torn tail after a kill) */
    const char *file; /* name within the run's folder */
    int64_t chunk;    /* sequence number, -1: none */
    uint64_t offset;  /* in the file */
    const char *text;
};

/* What the run reports of itself: something that was not as asked, or not as a user may think. */
struct dmi_read_problem {
    uint32_t size;
    uint32_t reserved;
    const char *site;     /* NULL: it is of none */
    const char *reason;   /* a word, as "several_passes" */
    const char *sentence; /* of the first time */
    uint64_t times;
};

/* A step, as the engine said it. If ranks are joined, it is the step of one of them. */
struct dmi_read_step {
    uint32_t size;
    uint32_t n_spans;
    uint64_t sequence; /* its number in the process: unique, what a record's @step is */
    uint64_t step;     /* the engine's own number, which may come twice */
    uint64_t time_ns;
    uint32_t n_rows; /* of the batch, padding included */
    uint32_t reserved;
    int32_t ranks
        [8]; /* tensor parallel rank and size, then pipeline, data, expert parallel; size 0 is 1 */
};

/* Consecutive rows of a step that belong to one request. */
struct dmi_read_span {
    uint32_t size;
    uint32_t phase;         /* enum dmi_phase, <dmi/dmi.h> */
    const char *request;    /* any bytes, not terminated */
    uint64_t request_bytes; /* 0: padding */
    int64_t first_position; /* of the token of its first row */
    uint32_t first_row, n_tokens;
    uint32_t n_cached; /* tokens before it that a prefix cache had */
    uint32_t n_prompt; /* of the request; 0: not said */
    uint32_t flags;    /* enum dmi_span_flags, <dmi/dmi.h> */
    uint32_t reserved;
    const int32_t *cached_ids; /* of the @n_cached tokens before it; NULL: not said */
};

/* What one site captured at one launch, for all requests. */
struct dmi_read_record {
    uint32_t size;
    uint32_t site; /* index for dmi_read_site() */
    int32_t layer; /* -1: none */
    uint32_t occurrence;
    uint32_t dtype, n_dims; /* enum dmi_dtype */
    uint32_t dims[4];
    uint32_t n_row_dims; /* so many of the dimensions together are the rows */
    uint32_t n_rows;
    uint32_t n_kept; /* 0: all rows of the batch; else it holds these many of them */
    uint32_t device;
    uint64_t launch, forward;
    uint64_t step; /* sequence of its step; UINT64_MAX: none */
    uint64_t time_ns;
    uint64_t n_bytes, stored_bytes; /* the second: its share of bytes in the files */
};

/* Return: DMI_READ_VERSION of the library. Any thread. */
DMI_READ_API uint32_t dmi_read_version(void);

/**
 * dmi_read_open() - open a run for reading
 * @path: a run's folder, a single segment file, or a folder with runs: then the run of the command that was started last, or those of
 *        its ranks, which are joined. FOLDER/latest likewise
 * @why: gets a sentence on failure, cut to @n_why bytes; may be NULL
 * Damage does not make it fail. It reads the run's structure and no payload.
 * Return: 0; -ENOENT (no run there), -ENOTUNIQ (several of one command, not of ranks), -errno.
 */
DMI_READ_API int dmi_read_open(const char *path, struct dmi_read **out, char *why, uint64_t n_why);
/* Accepts NULL. */
DMI_READ_API void dmi_read_close(struct dmi_read *run);

/**
 * dmi_read_refresh() - take in what was written since
 * Only what is new is read. Indices may change. After a failure only dmi_read_error() and dmi_read_close() are of use:
 * every other call fails. Return: 0 or -errno.
 */
DMI_READ_API int dmi_read_refresh(struct dmi_read *run);

/**
 * dmi_read_select() - choose tensors and rows from now on, as refreshing keeps them
 * @selection: copied; NULL: all that count, as after dmi_read_open()
 * Indices change. Return: 0; -EINVAL (no size, words that are none), -ENOENT (the run has not what it names, as
 * dmi_read_error() says with the nearest names): all is as before; -errno, and the handle is as after a failed
 * dmi_read_refresh().
 */
DMI_READ_API int dmi_read_select(struct dmi_read *run, const struct dmi_read_selection *selection);

/**
 * dmi_read_match() - which of the tensors that are selected are of some sites, layers and requests
 * @selection: only what names these
 * @tensors: gets their indices, of which it has room for @n_room
 * Return: how many there are; -EINVAL, -ENOENT as dmi_read_select(); -ENOMEM, -EBADF.
 */
DMI_READ_API int64_t dmi_read_match(struct dmi_read *run,
                                    const struct dmi_read_selection *selection, uint64_t *tensors,
                                    uint64_t n_room);

/* Return: the sentence of the last call that failed on this handle; "" if none did. */
DMI_READ_API const char *dmi_read_error(const struct dmi_read *run);

/* Each fills @out, whose size the caller has set. Return: 0, -EINVAL (no size), -ENOENT (no such index), -EBADF. */
DMI_READ_API int dmi_read_run(struct dmi_read *run, struct dmi_read_run *out);
DMI_READ_API int dmi_read_site(struct dmi_read *run, uint64_t index, struct dmi_read_site *out);
DMI_READ_API int dmi_read_account(struct dmi_read *run, uint64_t site,
                                  struct dmi_read_account *out);
DMI_READ_API int dmi_read_tensor(struct dmi_read *run, uint64_t index, struct dmi_read_tensor *out);
DMI_READ_API int dmi_read_request(struct dmi_read *run, uint64_t index,
                                  struct dmi_read_request *out);
DMI_READ_API int dmi_read_finding(struct dmi_read *run, uint64_t index,
                                  struct dmi_read_finding *out);
DMI_READ_API int dmi_read_problem(struct dmi_read *run, uint64_t index,
                                  struct dmi_read_problem *out);

/**
 * dmi_read_edit() - an edit that wrote in a request, in the order in which edits are done
 * @request: as of dmi_read_request(), or DMI_READ_NOBODY
 * @index: from 0 on
 * Fills @out, whose size the caller has set. Return: 0, -EINVAL (no size), -ENOENT (no further one), -EBADF.
 */
DMI_READ_API int dmi_read_edit(struct dmi_read *run, uint64_t request, uint64_t index,
                               struct dmi_read_edit *out);

/**
 * dmi_read_edit_sum() - add what an edit added to a row
 * @sum: the row's @n elements, to which it is added: true values, not rounded to the tensor's type
 * Return: 1; 0: it did not write that row; -ENOTSUP: it does not only add vectors, or not to rows of @n elements; -ENODATA: its text cannot be read; -ENOENT, -EBADF.
 */
DMI_READ_API int dmi_read_edit_sum(struct dmi_read *run, uint64_t request, uint64_t index,
                                   int32_t layer, int64_t position, float *sum, uint64_t n);

/**
 * dmi_read_about() - what the engine, or an adapter of it, noted about the model: dmi_describe() of <dmi/dmi.h>
 * @key: "config", "tokenizer"
 * Return: UTF-8; NULL: nothing. Where ranks are joined, what the first of them has.
 */
DMI_READ_API const char *dmi_read_about(struct dmi_read *run, const char *key);

/* As dmi_read_run(). Steps are in the order of their sequence, records in launch order, whatever is selected. */
DMI_READ_API int dmi_read_step(struct dmi_read *run, uint64_t index, struct dmi_read_step *out);
DMI_READ_API int dmi_read_span(struct dmi_read *run, uint64_t step, uint32_t span,
                               struct dmi_read_span *out);
DMI_READ_API int dmi_read_record(struct dmi_read *run, uint64_t index, struct dmi_read_record *out);

/* Return: the index of the tensor with a key; -ENOENT. */
DMI_READ_API int64_t dmi_read_find(struct dmi_read *run, const char *key);

/**
 * dmi_read_rows() - rows of a tensor, as they were captured: not divided by the site's scale
 * @data: gets @n_rows * row_bytes bytes, packed, little-endian; @n_data: bytes that it has room for.
 *        NULL with 0: only @rows is wanted, and nothing is decoded
 * @rows: gets @n_rows structs of @row_size bytes each, or NULL with 0
 * Return: 0; -EBADMSG if some of the rows are damaged: those are 0 in @data and flagged in @rows, the others are good;
 * -ERANGE (outside of the tensor), -ENOSPC (@n_data), -EINVAL (@data, and the rows are not of one type and width), -errno.
 */
DMI_READ_API int dmi_read_rows(struct dmi_read *run, uint64_t tensor, uint64_t first,
                               uint64_t n_rows, void *data, uint64_t n_data,
                               struct dmi_read_row *rows, uint64_t row_size);

/**
 * dmi_read_several() - all rows of several tensors, each record decoded once
 * @tensors: indices of @n tensors, none of them twice
 * @data: for each a buffer of n_rows * row_bytes bytes
 * For much of a run: a record of a batch has rows of a tensor a request, and dmi_read_rows() would decode it for each.
 * Return: 0; -EBADMSG if some of the rows are damaged: those are 0; -ENOENT, -EINVAL (a mixed tensor), -errno.
 */
DMI_READ_API int dmi_read_several(struct dmi_read *run, const uint64_t *tensors, uint64_t n,
                                  void *const *data);

/* Rows of one tensor that follow one another in one record. */
struct dmi_read_stretch {
    uint32_t size;
    uint32_t flags;  /* enum dmi_read_row_flags, of all its rows */
    uint64_t tensor; /* index for dmi_read_tensor() */
    uint64_t first;  /* the row of the tensor that the first of them is */
    uint64_t n_rows;
    int64_t position; /* of the first row's token, the next ones follow; -1: not known */
    const void *data; /* n_rows of @width elements, packed, little-endian; NULL: damaged */
    uint64_t width;
    uint32_t dtype; /* enum dmi_dtype: in a mixed tensor not that of the others, and so the width */
    uint32_t site;  /* index for dmi_read_site(): the entry that says the scale */
};

/**
 * dmi_read_visit() - all rows of several tensors in the order of their records, each record decoded once
 * @tensors: indices of @n tensors
 * @take: gets one stretch after the other, borrowed during the call, and returns 0 to go on. It may read by this handle, and
 *        may not refresh it, close it or select
 * For what needs much of a run once: one record is in memory at a time.
 * Return: 0; what @take returned, if that is not 0; -ENOENT, -ENOMEM, -EIO.
 */
DMI_READ_API int dmi_read_visit(struct dmi_read *run, const uint64_t *tensors, uint64_t n,
                                int (*take)(void *ctx, const struct dmi_read_stretch *stretch),
                                void *ctx);

/* What keeps the rows of a tensor from being a sample. */
enum dmi_read_sample_fault {
    DMI_READ_SAMPLE_WHOLE = 0,
    DMI_READ_SAMPLE_OF_NOBODY,   /* its rows belong to no request */
    DMI_READ_SAMPLE_OF_BEAMS,    /* rows of one position are of several sequences */
    DMI_READ_SAMPLE_MIXED,       /* its type or scale changes from record to record */
    DMI_READ_SAMPLE_LACKS_ROWS,  /* positions that were computed, and were not captured */
    DMI_READ_SAMPLE_LACKS_CACHE, /* positions that a prefix cache had: no row of them was computed */
    DMI_READ_SAMPLE_ROWS_TWICE,  /* rejected or superseded rows are selected too */
    DMI_READ_SAMPLE_INCOMPLETE, /* never returned: for a program that lacks another tensor of the sample */
    DMI_READ_SAMPLE_LACKS_MASK, /* never returned: for one whose file of loss masks has none for the request */
    DMI_READ_SAMPLE_GREW, /* never returned: for one that goes on with a dataset, which has the request with fewer tokens */
    DMI_READ_SAMPLE_NO_PROMPT, /* never returned: for one that names requests whose generation begins at an unknown token */
    DMI_READ_SAMPLE_NO_TOKENS, /* never returned: for one that names requests without the tokens that are asked for */
    DMI_READ_SAMPLE_RUNS, /* never returned: for one that waits until a request has ended */
};

/**
 * dmi_read_sample() - whether a tensor has every position of its request from 0 to the last, each once
 * @why: gets what is wrong, a phrase to stand after the tensor's name; may be NULL
 * Where a selection says which tokens are wanted, these positions. Damage of the files is not looked for.
 * Return: enum dmi_read_sample_fault; -ENOENT, -EBADF, -ENOMEM.
 */
DMI_READ_API int dmi_read_sample(struct dmi_read *run, uint64_t tensor, char *why, uint64_t n_why);

/**
 * dmi_read_verify() - decode everything, check every byte of every file, the accounting and the trace
 * Adds what it finds to the findings. Return: how many of all findings are damage; -errno.
 */
DMI_READ_API int64_t dmi_read_verify(struct dmi_read *run);

#ifdef __cplusplus
}
#endif

#endif
