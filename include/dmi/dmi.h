/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The public C API of DMI: what an engine, or the adapter of one, may tell libdmi_preload.so.
 *
 * All functions are exported by libdmi_preload.so and safe to call from any thread, before and
 * after CUDA is initialised, and when capture is off: they then do nothing and return
 * DMI_STATUS_OFF. None blocks on the GPU. Look them up at run time, so that the program runs
 * without DMI too:  dlsym(RTLD_DEFAULT, "dmi_step_begin").
 */
#ifndef DMI_DMI_H
#define DMI_DMI_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DMI_STEP_VERSION 1
#define DMI_TAP_VERSION  1
#define DMI_TAP_DIMS     4

/* 0 is success, below 0 is -errno, above 0 one of these. */
enum dmi_status {
    DMI_OK = 0,
    DMI_STATUS_OFF = 1,         /* no spec, a broken spec, or capture ended: nothing was noted */
    DMI_STATUS_BAD_VERSION = 2, /* a struct's size or version is not one that this library knows */
    DMI_STATUS_TIMEOUT = 3,     /* the bound was reached before all was done */
};

enum dmi_phase {
    DMI_PHASE_UNKNOWN = 0,
    DMI_PHASE_PREFILL = 1, /* prompt tokens */
    DMI_PHASE_DECODE = 2,  /* generated tokens, one a step */
    DMI_PHASE_DRAFT = 3,   /* speculative tokens that may be rejected: see dmi_accept() */
};

/*
 * What the engine's prefix cache does: where neither of the first two is said it is not known, and edits (docs/edits.md) write nothing. And which
 * launches the step holds for.
 */
enum dmi_step_flags {
    DMI_STEP_CACHES_PREFIXES =
        1
        << 0, /* requests share cached rows of equal prefixes, unless tag `cache_salt` tells them apart */
    DMI_STEP_CACHES_NOTHING = 1 << 1, /* no row that one request computes is another's */
    DMI_STEP_OF_THREAD =
        1
        << 2, /* it holds for launches of the calling thread alone: other threads have steps of their own */
    DMI_STEP_PAUSES =
        1 << 3, /* the next dmi_step_begin() does not end it: dmi_step_resume() goes on with it */
};

enum dmi_span_flags {
    DMI_SPAN_PADDING = 1 << 0, /* these rows belong to no request: they fill the batch */
    DMI_SPAN_LAST = 1 << 1, /* the request's last step, known ahead of it: see dmi_request_end() */
    /* A part of a prompt behind which the engine chooses no token: where a row is a request's (logits), it has none. Such spans come last. */
    DMI_SPAN_PART = 1 << 2,
};

/* Why a request ended. Numbers are part of the format. */
enum dmi_end {
    DMI_END_UNKNOWN = 0, /* not said */
    DMI_END_STOP = 1,    /* a stop token or string */
    DMI_END_LENGTH = 2,  /* the most tokens that it may have */
    DMI_END_ABORTED = 3, /* by its client, or by the engine */
};

/*
 * A run of consecutive batch rows that belong to one request. A request may have several spans in a step (a chunk of its
 * prompt and a decode), as long as no two of them have a position in common.
 */
struct dmi_span {
    const char *request_id; /* UTF-8, at most 255 bytes; borrowed during the call */
    const char
        *tags; /* UTF-8, at most 65,535 bytes, by convention a JSON object; NULL: none; borrowed */
    int64_t first_position; /* position within the request of the first row's token, 0-based */
    uint32_t first_row;     /* row of the batch that holds it */
    uint32_t n_tokens;      /* rows of the span */
    uint32_t n_cached; /* tokens before first_position that came from a prefix cache, not computed;
                             * given once a request, with the first span after them */
    uint32_t phase;    /* enum dmi_phase */
    uint32_t flags;    /* enum dmi_span_flags */
    uint32_t n_prompt; /* tokens of the request's prompt, 0: not said */
    /*
     * Token ids of the @n_cached positions before first_position, in their order: no row of them is in any forward, so
     * that readers know them from here alone. NULL: not said; borrowed during the call. They are stored only if the HookSpec
     * has a site token_ids, and while less than 32 MiB of steps wait for the disk.
     */
    const int32_t *cached_ids;
};

/* One forward of the engine: which rows of its batch are whose tokens. */
struct dmi_step {
    uint32_t size;                /* sizeof(struct dmi_step) of the caller */
    uint32_t version;             /* DMI_STEP_VERSION */
    uint64_t step;                /* the engine's own step number; the same on all ranks */
    uint32_t n_rows;              /* rows of the batch, padding included */
    uint32_t n_spans;             /* entries of @spans */
    uint32_t span_size;           /* sizeof(struct dmi_span) of the caller: the array's stride */
    uint32_t flags;               /* enum dmi_step_flags */
    const struct dmi_span *spans; /* borrowed during the call */
    const char *tags;             /* as a span's; NULL: none; borrowed */
    int32_t tp_rank, tp_size;     /* tensor parallel coordinates; 0 of 1 where there is none */
    int32_t pp_rank, pp_size;     /* pipeline parallel */
    int32_t dp_rank, dp_size;     /* data parallel */
    int32_t ep_rank, ep_size;     /* expert parallel */
    uint32_t part;     /* number of the micro-batch, where the engine divides a step; else 0 */
    uint32_t reserved; /* 0 */
};

/**
 * dmi_step_begin() - say whose tokens the rows of the coming forward are
 * @step: copied before the call returns; spans need not cover all rows
 *
 * The step holds for every launch that follows in this process, from any thread, until the next call. It also starts a
 * forward if the HookSpec has `forward: {begin: step}`, or says of no forward how it begins.
 *
 * Where several threads say steps (two engines in a process, a thread for each micro-batch), DMI_STEP_OF_THREAD says that a step holds for
 * the launches of its thread alone. Such a thread's launches are of its own steps or of none. It counts its own forwards and layers. Without the flag nothing
 * says whose a launch is while steps of two threads overlap: a launch is then of the step said last if its thread said that step, and of no known
 * step otherwise. Its rows belong to no request, its layer is not known where it is counted from launches, and edits of single requests miss it. The run
 * counts such steps (problem `steps_overlap`). A thread that says steps launches for its own alone.
 *
 * One thread that computes two batches in turn says DMI_STEP_PAUSES with both steps: each begin then pauses the other, and
 * dmi_step_resume() goes on with it. Each such step counts its own forward. At most 16 steps of a thread, and 16 others, are paused: beyond that the oldest ends.
 *
 * The run counts a step that is refused (`steps_refused`), and names the first one in its manifest and in the log. The
 * rows of the launches that follow then belong to no request. A span without a request id, or with one over 255 bytes,
 * costs its own rows alone: they belong to no request, and the run counts and names it likewise (`ids_refused`).
 *
 * Thread: any. Return: 0, DMI_STATUS_OFF, DMI_STATUS_BAD_VERSION, -EINVAL (a span lies outside n_rows, shares rows with
 * another or positions with another of its request, has a negative position, or more cached tokens than there are before
 * it; tags over 65,535 bytes; more than 65,536 spans or 16,777,216 rows; a rank outside of its size), -ENOMEM.
 */
int dmi_step_begin(const struct dmi_step *step);

/**
 * dmi_step_resume() - go on with a step that paused
 * @step, @part: as in its struct dmi_step, which had DMI_STEP_PAUSES
 *
 * Launches that follow are of it, as after its dmi_step_begin(). What was under way pauses if it has DMI_STEP_PAUSES, and ends otherwise. A step with
 * DMI_STEP_OF_THREAD is resumed by its thread.
 *
 * Thread: any. Return: 0, DMI_STATUS_OFF, -ENOENT (no such step pauses: what follows is of no step).
 */
int dmi_step_resume(uint64_t step, uint32_t part);

/**
 * dmi_step_end() - the rows of later launches belong to no request until the next dmi_step_begin() or dmi_step_resume()
 *
 * It ends the step that holds for the calling thread's launches. Steps that pause stay.
 *
 * Thread: any. Return: 0 or DMI_STATUS_OFF.
 */
int dmi_step_end(void);

/**
 * dmi_accept() - say what became of a request's drafts, once the engine has verified them
 * @request_id: as in its spans
 * @step: the engine's own number of the step that verified; the latest step of that number in this process
 * @n_accepted: how many of the request's rows of phase draft in that step hold tokens that stay: the first ones, in the order
 *              of their positions; the others are rejected
 *
 * This function counts rows. A row stands for the token that went into it. A step that verifies K drafts has 1 + K rows
 * of the request: the last token that was accepted before, then the drafts. If all of them are one span of phase draft,
 * the first row counts too, and always stays: @n_accepted is 1 + the accepted drafts, which is also how many tokens the
 * step gives the request (in vLLM the length of its list in sampled_token_ids). If the first row has a span of its own of
 * phase decode, @n_accepted is the accepted drafts alone.
 *
 * Rejected rows stay in the run, marked. No tensor of the request has them unless a reader asks for them. A draft counts
 * as accepted if no call says otherwise. The library remembers the drafts of the latest 1024 steps with drafts, or of
 * fewer if they take more than 8 MiB. The run counts what is refused and names it in its manifest. The calling thread
 * writes nothing.
 *
 * Thread: any. Return: 0, DMI_STATUS_OFF, -ENOENT (no step of that number has draft rows of the request, or it is long
 * past), -EINVAL (it has fewer of them; no id, or one over 255 bytes), -EALREADY (it was said before), -ENOBUFS (more
 * than 16 MiB of outcomes wait for the disk), -ENOMEM.
 */
int dmi_accept(const char *request_id, uint64_t step, uint32_t n_accepted);

/**
 * dmi_request_end() - a request ended: no step after those that were begun computes tokens of it
 * @reason: enum dmi_end
 *
 * DMI_SPAN_LAST says the same ahead of the last step. Another request may use the id afterwards: readers show it as ID~2.
 * The library sees preemption from the spans that come back; no call announces it.
 *
 * Thread: any. Return: 0, DMI_STATUS_OFF, -EINVAL (no id, one over 255 bytes, a reason that is none), -ENOBUFS, -ENOMEM,
 * as dmi_accept().
 */
int dmi_request_end(const char *request_id, uint32_t reason);

/* enum dmi_tap_flags */
enum dmi_tap_flags {
    /*
     * What reads the tensor later on the stream reads this memory, and nothing has read it yet: edits may write here, at a site with
     * `write`. The elements must not lie over one another.
     */
    DMI_TAP_WRITABLE = 1 << 0,
    /* The CPU has computed it: the calling thread reads it before the call returns, in pinned memory, too. */
    DMI_TAP_HOST = 1 << 1,
    /*
     * A row is a request's: that of the last token of a span, in the order of the spans (logits of the tokens that are sampled after). At a site
     * with `row: token`, too, each row is recorded as its token's. Edits, which choose rows by token, are not done there.
     */
    DMI_TAP_REQUESTS = 1 << 2,
};

/* A tensor in memory of a device, or of the host, that an engine, or a plugin of one, points out. */
struct dmi_tap {
    uint32_t size;    /* sizeof(struct dmi_tap) of the caller */
    uint32_t version; /* DMI_TAP_VERSION */
    const char *name; /* at most 128 letters, digits, _ - . ; borrowed during the call */
    const void *data; /* address of its first element */
    void *
        stream; /* CUstream: at this point of it the tensor holds its values. Of memory of the host alone: not looked at */
    int32_t layer;    /* from 0; -1: none */
    int32_t n_layers; /* layers of the model; 0: not said */
    uint32_t dtype;   /* enum dmi_dtype of <dmi/dtype.h> */
    uint32_t n_dims;  /* 1 to DMI_TAP_DIMS */
    /*
     * Bit d: dimension d is a row dimension, along which tokens (or requests) lie; one or two bits. With two, as for
     * [batch, token, ...] or [batch, head, token, d], element (b, t) is row b * count[t's dimension] + t.
     */
    uint32_t row_dims;
    uint32_t flags;               /* enum dmi_tap_flags */
    uint64_t count[DMI_TAP_DIMS]; /* elements along each dimension */
    int64_t stride[DMI_TAP_DIMS]; /* bytes from one to the next */
};

/**
 * dmi_tap() - say "here it is": a tensor, at the moment at which it holds its values
 * @tap: copied before the call returns; the tensor must stay until the stream has passed this point
 *
 * If the HookSpec has a site with this tap (`tap: NAME`), the library records the tensor as at a kernel's site. On an
 * ordinary stream it copies at once. On a stream that is being captured it copies at each launch of the resulting graph:
 * the copy waits for what the stream waits for now, and what is captured later waits for the copy. The application's own
 * graph gets no node. Memory that the driver does not know (no device has it, and it is neither pinned nor managed), and what has DMI_TAP_HOST, the
 * calling thread reads before the call returns; no driver is needed. If no tap says n_layers, "last" in a HookSpec holds from the second forward on. The row
 * dimensions come first in what is stored, as one dimension, then the others in their order.
 *
 * A tap that no site names costs a look-up. The run counts a tap that cannot be (wrong sizes, a dtype that is none, no
 * memory there) and names it in its manifest. The first tap begins the run, unless CUDA did. <dmi/tap.h> has
 * dmi_tap_here(), which needs no library to be there.
 *
 * Thread: any whose current context is that of the stream, if there is one. Return: 0 (also where no site wants it), DMI_STATUS_OFF,
 * DMI_STATUS_BAD_VERSION, -EINVAL (no name, or one that is none; n_dims, row_dims, dtype or layer that cannot be).
 */
int dmi_tap(const struct dmi_tap *tap);

/* Where a tensor stands in a run: its step, whose rows are whose, its forward, layer and pass. For tensors that come later and belong there, too. */
struct dmi_moment;

/**
 * dmi_moment_take() - say where a tensor belongs that comes later, as the gradient of the one that is there now
 * @tap: its name, layer and n_layers; data, stream and flags of the tensor that is there now
 * @moment: gets what dmi_tap_at() is given, to be released; NULL where that is given none: on a stream that is being captured, as each launch
 *          of the graph is a moment of its own
 *
 * It takes the occurrence that a tap of that name would take here. The run expects nothing before dmi_tap_at(), so a tensor that never comes
 * costs nothing.
 *
 * Thread: as dmi_tap(). Return: 0; DMI_STATUS_OFF (also where no site wants the name in the layer: dmi_tap_at() need not be called);
 * DMI_STATUS_BAD_VERSION, -EINVAL as dmi_tap(), -ENOMEM.
 */
int dmi_moment_take(const struct dmi_tap *tap, struct dmi_moment **moment);

/**
 * dmi_tap_at() - as dmi_tap(), of a tensor that belongs to an earlier moment
 * @tap: with the name that the moment was taken for
 * @moment: stays the caller's, who may tap at it again: each time is a record; NULL, and on a stream that is being captured: now.
 *          What another process took, before a fork, is now, too
 *
 * Thread: any, as dmi_tap(), whichever took the moment. Return: as dmi_tap(); -EINVAL also where the moment was taken for another name.
 */
int dmi_tap_at(const struct dmi_tap *tap, const struct dmi_moment *moment);

/* Frees @moment, NULL too. Thread: any. */
void dmi_moment_release(struct dmi_moment *moment);

/**
 * dmi_site_enable() - switch the capture of sites on or off, from the next launch on
 * @pattern: a shell's pattern (fnmatch(3)) for names of sites in the HookSpec: "q", "resid_*", "*";
 *           several with blanks between them
 * @on: 0 off, else on; all sites are on at the start
 *
 * The library goes on counting occurrences, and with them layers. It expects no records of a site that is off, so it
 * neither captures nor drops them. In a CUDA graph the copies of sites that are off become disabled nodes at the graph's
 * next launch; nothing is captured or instantiated anew. The run notes a call that changes something (`dmi-dump list`
 * shows it); the note is on the disk a second later at most. Where a HookSpec has taps, a call before the first one begins the run.
 *
 * Thread: any. Return: 0, DMI_STATUS_OFF, -ENOENT (no site of the spec has such a name), -EINVAL; -ENOSPC, -ENOMEM: the
 * run has no room for the note, and nothing has changed.
 */
int dmi_site_enable(const char *pattern, int on);

/**
 * dmi_describe() - note in the run something about the model or the engine, for programs that read it
 * @key: at most 64 letters, digits, _ - . ; by convention "config" is the model's config as Hugging Face writes it, or what a
 *       GGUF's header says (docs/attention.md), "tokenizer" the path or the name of its tokenizer
 * @value: UTF-8, at most 1 MiB; the last one said of a key counts; borrowed during the call
 *
 * It stands in the run's manifest from the next commit on. A run has at most 64 keys. The call waits for no disk.
 *
 * Thread: any. Return: 0, DMI_STATUS_OFF, -EINVAL (no key or one that is none, no value, too long), -ENOSPC, -ENOMEM.
 */
int dmi_describe(const char *key, const char *value);

/**
 * dmi_flush() - wait until all that was captured by launches before this call is in a segment
 * @timeout_ns: bound of the wait, in nanoseconds
 *
 * The launches themselves must be able to finish: it does not synchronise the device.
 * Thread: any without locks that a GPU callback needs. Return: 0, DMI_STATUS_OFF,
 * DMI_STATUS_TIMEOUT.
 */
int dmi_flush(uint64_t timeout_ns);

/**
 * dmi_edits_missed() - how many rows of a request edits with `on_miss: abort` have missed so far (docs/edits.md)
 * @request_id: as in its spans
 *
 * An engine, or its adapter, ends such a request rather than giving its client an answer without the edit. What a launch brings about
 * is known when the call of the launch returns.
 *
 * Thread: any. Return: rows; 0: none, the request is not known, or nothing is captured.
 */
int64_t dmi_edits_missed(const char *request_id);

/**
 * dmi_range_begin() - the calling thread begins something that a trace of steps shall show (docs/trace.md)
 * @name: what it is, as "EngineCore::Schedule"; of more than 71 bytes the first ones
 *
 * A range takes two readings of the clock and memory of the thread's own. Ranges nest, 32 deep. Where they come faster than they are
 * written some are lost, and counted.
 *
 * Thread: any. Return: 0, DMI_STATUS_OFF (nothing is traced), -EINVAL (no name), -ENOSPC (lost).
 */
int dmi_range_begin(const char *name);

enum dmi_range_flags {
    DMI_RANGE_FLAG_OVERLAPS =
        1 << 0, /* the thread's ranges may overlap it, as those of several requests do */
};

/**
 * dmi_range_begin_at() - as dmi_range_begin(), for what began before
 * @begin_ns: when, by CLOCK_MONOTONIC; in the past
 * @flags: enum dmi_range_flags
 *
 * A program calls it once it knows that something is worth a range, and then dmi_range_fact() and dmi_range_end().
 *
 * Thread: any. Return: as dmi_range_begin(); -EINVAL also for a begin that is yet to come, and unknown flags.
 */
int dmi_range_begin_at(const char *name, uint64_t begin_ns, uint32_t flags);

/**
 * dmi_range_fact() - a number of the innermost range that the calling thread has open, as how many requests were scheduled
 * @key: of more than 23 bytes the first ones
 *
 * Thread: that of dmi_range_begin(). Return: 0, DMI_STATUS_OFF, -EINVAL (no key), -ENOENT (no range is open), -ENOSPC (it has four).
 */
int dmi_range_fact(const char *key, int64_t value);

/**
 * dmi_range_end() - the calling thread ends the innermost range that dmi_range_begin() has opened in it
 *
 * Thread: that of dmi_range_begin(). Return: 0, DMI_STATUS_OFF, -ENOENT (none is open), -ENOSPC (lost).
 */
int dmi_range_end(void);

#ifdef __cplusplus
}
#endif
#endif
