/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/recording/recorder.h"

#include "core/atomic.h"
#include "core/cleanup.h"
#include "core/clock.h"
#include "core/err.h"
#include "core/grow.h"
#include "core/log.h"
#include "preload/base/driver.h"
#include "preload/capture/params.h"
#include "preload/recording/pages.h"
#include "preload/recording/writer.h"
#include "preload/session/session.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAX_POINTERS 256                  /* of a launch */
#define WINDOW       ((uint64_t)64 << 20) /* bytes from a pointer on that are looked at */
#define SMALL        ((uint64_t)64 << 10) /* an allocation whose first contents are kept */
#define BUDGET       ((uint64_t)4 << 30)  /* unless DMI_RECORD_BUDGET says otherwise */
#define PROGRESS_NS  ((uint64_t)10 * 1000000000)
#define MIN_ADDRESS  4096u
#define MAX_ADDRESS  ((uint64_t)1 << 57)

/* What functions are called in the file. */
struct named {
    const struct func *func;
};

static struct recorder {
    int on; /* 1: launches are recorded; atomic */
    bool open;
    pthread_mutex_t lock; /* all that follows, and a launch from before to after */
    struct writer writer;
    struct pages pages;
    struct named *named; /* by the number in the file */
    size_t n_named, room_named;
    uint64_t budget_bytes, max_forwards;
    uint64_t n_forwards, n_launches, n_unseen;
    uint64_t last_said_ns;
    enum dmi_recording_reason reason;
    bool waits_for_begin; /* nothing before the first forward */
    /* of the launch under way */
    uint32_t kernel, n_pointers, n_params;
    bool in_graph;
    struct dmi_recording_pointer pointers[MAX_POINTERS];
    struct pages_range ranges[MAX_POINTERS];
    uint32_t n_ranges;
    uint8_t params[DMI_RECORDING_MAX_PARAMS + 4];
} recorder = { .lock = PTHREAD_MUTEX_INITIALIZER, .writer.file.fd = -1 };

/* ------------------------------------------------------------------------- start and end */

/* 'PATTERN' as YAML wants it: single quotes are doubled. */
static char *quoted(const char *text)
{
    char *out = malloc(2 * strlen(text) + 1), *to = out;
    for (; out && *text; text++) {
        if (*text == '\'')
            *to++ = '\'';
        *to++ = *text;
    }
    if (out)
        *to = 0;
    return out;
}

struct spec *recorder_spec(void)
{
    static const char sites[] =
        "sites: [{name: any, kernel: '.', pointer: 'param[0]', dtype: u8, dims: "
        "[{row: true, count: 1}]}]\n";
    const char *begin = getenv("DMI_RECORD_BEGIN");
    _cleanup_(freep) char *pattern = begin && *begin ? quoted(begin) : NULL;
    _cleanup_(freep) char *text = NULL;
    struct spec_errors errors = { 0 };
    struct spec *spec = NULL;
    int n = pattern
                ? asprintf(&text, "hookspec: 1\nforward: [{kind: any, begin: {kernel: '%s'}}]\n%s",
                           pattern, sites)
                : asprintf(&text, "hookspec: 1\n%s", sites);
    int r =
        n < 0 ? -ENOMEM : spec_parse("DMI_RECORD_BEGIN", text, (size_t)n, NULL, 0, &errors, &spec);
    for (size_t i = 0; i < errors.n_lines; i++)
        log_line("%s", errors.lines[i]);
    spec_errors_deinit(&errors);
    return r ? NULL : spec;
}

int recorder_start(struct err *err, const char *path)
{
    struct recorder *rec = &recorder;
    const char *begin = getenv("DMI_RECORD_BEGIN");
    int r = writer_open(&rec->writer, path);
    if (r)
        return err_set_errno(err, -r, "%s: cannot make the recording", path);
    rec->budget_bytes = session_env_size("DMI_RECORD_BUDGET");
    if (!rec->budget_bytes)
        rec->budget_bytes = BUDGET;
    rec->max_forwards = session_env_size("DMI_RECORD_FORWARDS");
    rec->waits_for_begin = begin && *begin;
    rec->last_said_ns = clock_mono_ns();
    rec->open = true;
    atomic_store_release(&rec->on, 1); /* to recorder_on() */
    return 0;
}

bool recorder_on(void)
{
    return atomic_load_acquire(&recorder.on); /* of recorder_start() */
}

static void stop(struct recorder *rec, enum dmi_recording_reason reason)
{
    rec->reason = reason;
    atomic_store_release(&rec->on, 0); /* to recorder_on() */
}

/* A file or driver that refuses ends the recording, never the program. */
static bool went_well(struct recorder *rec, int r)
{
    if (!r)
        return true;
    log_line("the recording ends here: %s",
             r == -EIO ? "memory could not be read, or a write failed" : strerror(-r));
    stop(rec, DMI_RECORDING_ERROR);
    return false;
}

bool recorder_finish(void)
{
    struct recorder *rec = &recorder;
    if (!rec->open)
        return false;
    pthread_mutex_lock(&rec->lock);
    rec->open = false;
    atomic_store_release(&rec->on, 0); /* to recorder_on() */
    struct dmi_recording_end end = { rec->n_launches, rec->reason, (uint32_t)rec->n_unseen };
    writer_add(&rec->writer, DMI_RECORDING_END, &(struct writer_part){ &end, sizeof end }, 1);
    log_line("recorded %llu launches, %llu MiB", (unsigned long long)rec->n_launches,
             (unsigned long long)(rec->writer.n_written >> 20));
    writer_close(&rec->writer);
    pages_deinit(&rec->pages);
    pthread_mutex_unlock(&rec->lock);
    return true;
}

void recorder_reset(void)
{
    recorder = (struct recorder){ .lock = PTHREAD_MUTEX_INITIALIZER, .writer.file.fd = -1 };
}

/* ------------------------------------------------------------------------- parameters */

/* Return: how many bytes of parameters there are, 0 where nobody knows. */
static uint32_t n_param_bytes(const struct params *params)
{
    uint32_t n = 0;
    if (params->packed)
        return params->n_packed <= DMI_RECORDING_MAX_PARAMS ? (uint32_t)params->n_packed : 0;
    for (uint32_t i = 0; params->layout && i < params->layout->n; i++)
        if (params->layout->at[i].offset + params->layout->at[i].size > n)
            n = params->layout->at[i].offset + params->layout->at[i].size;
    return n <= DMI_RECORDING_MAX_PARAMS ? n : 0;
}

static void keep_params(struct recorder *rec, const struct eager_launch *l, const struct func *func)
{
    struct params params;
    const struct params_layout *layout = functions_layout(func);
    params_init(&params, layout, l->kernel_params, l->extra);
    rec->n_params = n_param_bytes(&params);
    memset(rec->params, 0, rec->n_params);
    if (params.packed) {
        memcpy(rec->params, params.packed, rec->n_params);
        return;
    }
    for (uint32_t i = 0; rec->n_params && i < layout->n; i++)
        params_read(&params, (struct expr_ref){ .arg = (int)i }, rec->params + layout->at[i].offset,
                    layout->at[i].size);
}

static bool in_allocation(uint64_t address, struct dmi_recording_pointer *pointer)
{
    CUdeviceptr base = 0;
    size_t size = 0;
    if (address < MIN_ADDRESS || address >= MAX_ADDRESS)
        return false;
    struct stream_relaxed relaxed = stream_relax();
    CUresult r = driver_table.cuMemGetAddressRange_v2(&base, &size, address);
    stream_unrelax(&relaxed);
    *pointer = (struct dmi_recording_pointer){ .address = address, .base = base, .n_bytes = size };
    return r == CUDA_SUCCESS && address >= base && address - base < size;
}

static void find_pointers(struct recorder *rec)
{
    rec->n_pointers = 0;
    for (uint32_t at = 0; at + 8 <= rec->n_params && rec->n_pointers < MAX_POINTERS; at += 4) {
        uint64_t address;
        memcpy(&address, rec->params + at, sizeof address);
        if (in_allocation(address, &rec->pointers[rec->n_pointers]))
            rec->pointers[rec->n_pointers++].offset = at;
    }
}

static struct pages_range range_of(const struct dmi_recording_pointer *p)
{
    uint64_t from = (p->address - p->base) / DMI_RECORDING_BLOCK * DMI_RECORDING_BLOCK;
    uint64_t n = p->n_bytes - from;
    return (struct pages_range){ p->base + from, n < WINDOW ? n : WINDOW, p->n_bytes <= SMALL };
}

static int by_address(const void *a, const void *b)
{
    const struct pages_range *x = a, *y = b;
    return x->address < y->address ? -1 : x->address > y->address;
}

/* Each block once, though several pointers lead to it. Blocks of neighbouring allocations stay apart. */
static void find_ranges(struct recorder *rec)
{
    struct pages_range all[MAX_POINTERS];
    rec->n_ranges = 0;
    for (uint32_t i = 0; i < rec->n_pointers; i++)
        all[i] = range_of(&rec->pointers[i]);
    qsort(all, rec->n_pointers, sizeof *all, by_address);
    for (uint32_t i = 0; i < rec->n_pointers; i++) {
        struct pages_range *last = rec->n_ranges ? &rec->ranges[rec->n_ranges - 1] : NULL;
        if (!last || all[i].address >= last->address + last->n_bytes)
            rec->ranges[rec->n_ranges++] = all[i];
        else if (all[i].address + all[i].n_bytes > last->address + last->n_bytes)
            last->n_bytes = all[i].address + all[i].n_bytes - last->address;
    }
}

/* ------------------------------------------------------------------------- one launch */

static int name_kernel(struct recorder *rec, const struct func *func)
{
    for (rec->kernel = 0; rec->kernel < rec->n_named; rec->kernel++)
        if (rec->named[rec->kernel].func == func)
            return 0;
    TRY(grow((void **)&rec->named, rec->n_named, &rec->room_named, sizeof *rec->named, 64));
    const struct params_layout *layout = functions_layout(func);
    struct dmi_recording_kernel head = { rec->kernel,
                                         layout ? layout->n : DMI_RECORDING_NO_LAYOUT };
    struct writer_part parts[] = {
        { &head, sizeof head },
        { layout ? layout->at : NULL, layout ? layout->n * sizeof *layout->at : 0 },
        { func->name, strlen(func->name) },
    };
    rec->named[rec->n_named++].func = func;
    return writer_add(&rec->writer, DMI_RECORDING_KERNEL, parts, 3);
}

static int write_launch(struct recorder *rec, const struct eager_launch *l)
{
    struct dmi_recording_launch head = {
        .sequence = rec->n_launches,
        .kernel = rec->kernel,
        .flags = rec->in_graph ? DMI_RECORDING_IN_GRAPH : 0,
        .grid = { l->grid[0], l->grid[1], l->grid[2] },
        .block = { l->block[0], l->block[1], l->block[2] },
        .shared_bytes = l->shared_bytes,
        .n_pointers = rec->n_pointers,
        .n_params = rec->n_params,
    };
    struct writer_part parts[] = { { &head, sizeof head },
                                   { rec->pointers, rec->n_pointers * sizeof *rec->pointers },
                                   { rec->params, rec->n_params } };
    return writer_add(&rec->writer, DMI_RECORDING_LAUNCH, parts, 3);
}

/* Does this launch belong to what is to be recorded? */
static bool wanted(struct recorder *rec, const struct func *func)
{
    if (!atomic_load_relaxed(&rec->on))
        return false; /* it ended while this thread waited */
    bool begins = func->match.kind >= 0;
    if (begins && rec->max_forwards && rec->n_forwards == rec->max_forwards) {
        stop(rec, DMI_RECORDING_FORWARDS);
        return false;
    }
    rec->n_forwards += begins;
    rec->waits_for_begin = rec->waits_for_begin && !begins;
    if (!rec->waits_for_begin && rec->pages.n_emitted >= rec->budget_bytes)
        stop(rec, DMI_RECORDING_BUDGET);
    return !rec->waits_for_begin && atomic_load_relaxed(&rec->on);
}

bool recorder_before(const struct eager_launch *l, const struct func *func, bool in_graph)
{
    struct recorder *rec = &recorder;
    if (!recorder_on() || stream_is_capturing(l->stream))
        return false;
    pthread_mutex_lock(&rec->lock);
    if (!wanted(rec, func)) {
        pthread_mutex_unlock(&rec->lock);
        return false;
    }
    rec->in_graph = in_graph;
    keep_params(rec, l, func);
    find_pointers(rec);
    find_ranges(rec);
    if (went_well(rec, name_kernel(rec, func)))
        went_well(rec, pages_look(&rec->pages, &rec->writer, l->stream, rec->ranges, rec->n_ranges,
                                  rec->n_launches, false));
    return true;
}

void recorder_unseen(const char *why, bool tell)
{
    struct recorder *rec = &recorder;
    pthread_mutex_lock(&rec->lock);
    rec->n_unseen++;
    if (tell) {
        log_line("a graph is launched as it is, and not recorded: %s", why);
        went_well(rec, writer_add(&rec->writer, DMI_RECORDING_UNSEEN,
                                  &(struct writer_part){ why, strlen(why) }, 1));
    }
    pthread_mutex_unlock(&rec->lock);
}

static void say_progress(struct recorder *rec)
{
    uint64_t now = clock_mono_ns();
    if (now - rec->last_said_ns < PROGRESS_NS)
        return;
    rec->last_said_ns = now;
    log_line("recording: %llu launches, %llu MiB", (unsigned long long)rec->n_launches,
             (unsigned long long)(rec->writer.n_written >> 20));
}

void recorder_after(const struct eager_launch *l, CUresult result)
{
    struct recorder *rec = &recorder;
    if (result == CUDA_SUCCESS && atomic_load_relaxed(&rec->on) &&
        went_well(rec, write_launch(rec, l))) {
        went_well(rec, pages_look(&rec->pages, &rec->writer, l->stream, rec->ranges, rec->n_ranges,
                                  rec->n_launches, true));
        rec->n_launches++;
        say_progress(rec);
    }
    pthread_mutex_unlock(&rec->lock);
}
