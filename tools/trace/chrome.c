/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dmi-trace export --chrome: a run as PyTorch's profiler writes one. Source: "Trace Event Format" of Chrome, and libkineto's output_json.cpp (PyTorch
 * 2.14): events of phase X with times in microseconds since baseTimeNanoseconds; what ran has the device's number as its process, its stream as its thread,
 * and its category (kernel, gpu_memcpy, gpu_memset) says what it is; steps are annotations ProfilerStep#N. HTA takes what a call of the host in a step has
 * launched, by the correlation of both. A trace of ours knows which step launched it, and not when: so the launch is put at the step's begin, and says so.
 */
#include "core/cleanup.h"
#include "core/sorted.h"
#include "read/utf8.h"
#include "storage/codec/hash.h"
#include "storage/text.h"
#include "tools/common/say.h"
#include "tools/trace/export.h"
#include "tools/trace/kernels.h"
#include "tools/trace/names.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MOST_DEVICES  64u
#define MOST_LAUNCHES 4096u
#define MOST_NAMES    1024u /* that are remembered demangled */

struct known_name {
    char *name, *shown;
};

struct chrome {
    FILE *to;
    int error; /* errno; 0 */
    const struct export_asked *asked;
    const struct trace_run *run; /* the one that is written */
    struct runs_steps steps;
    struct runs_times times;            /* of these */
    uint64_t base_ns, begin_ns, end_ns; /* of the steps asked for */
    bool on_device[MOST_DEVICES];
    size_t n_runs, n_untraced;
    uint64_t n_events;
    uint64_t launched[MOST_LAUNCHES]; /* correlations of the latest launches that were written */
    struct text line, name;
    struct known_name known[MOST_NAMES]; /* of kernels, by hash */
};

/* ------------------------------------------------------------------------- events */

static void put_line(struct chrome *c)
{
    if (c->line.failed || c->name.failed)
        c->error = c->error ? c->error : ENOMEM;
    else if (!c->error && (fputs(c->n_events++ ? ",\n" : "\n", c->to) < 0 ||
                           fwrite(c->line.data, 1, c->line.n, c->to) != c->line.n))
        c->error = errno ? errno : EIO;
    c->line.n = 0;
}

static void add_name(struct chrome *c, const char *name, size_t n)
{
    c->name.n = 0;
    utf8_add_printable(&c->name, name, n);
    text_json_n(&c->line, c->name.n ? c->name.data : "", c->name.n);
}

static void add_us(struct text *line, const char *key, int64_t ns)
{
    uint64_t size = ns < 0 ? -(uint64_t)ns : (uint64_t)ns;
    text_printf(line, ", \"%s\": %s%" PRIu64 ".%03" PRIu64, key, ns < 0 ? "-" : "", size / 1000,
                size % 1000);
}

/* Begins an event of phase X; its "args": {...}} follow. */
static void begin_event(struct chrome *c, const char *category, const char *name, size_t n_name,
                        uint64_t pid, uint64_t tid)
{
    text_printf(&c->line, "{\"ph\": \"X\", \"cat\": \"%s\", \"name\": ", category);
    add_name(c, name, n_name);
    text_printf(&c->line, ", \"pid\": %" PRIu64 ", \"tid\": %" PRIu64, pid, tid);
}

static void add_times(struct chrome *c, uint64_t begin_ns, uint64_t end_ns)
{
    add_us(&c->line, "ts", (int64_t)(begin_ns - c->base_ns));
    add_us(&c->line, "dur", end_ns > begin_ns ? (int64_t)(end_ns - begin_ns) : 0);
}

/* Names a process, as it is sorted among others. */
static void put_process(struct chrome *c, uint64_t pid, const char *name, const char *label,
                        uint64_t place)
{
    text_printf(&c->line,
                "{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": %" PRIu64
                ", \"tid\": 0, \"ts\": 0, \"args\": {\"name\": ",
                pid);
    add_name(c, name, strlen(name));
    text_printf(&c->line, "}}");
    put_line(c);
    text_printf(&c->line,
                "{\"ph\": \"M\", \"name\": \"process_labels\", \"pid\": %" PRIu64
                ", \"tid\": 0, \"ts\": 0, \"args\": {\"labels\": \"%s\"}}",
                pid, label);
    put_line(c);
    text_printf(&c->line,
                "{\"ph\": \"M\", \"name\": \"process_sort_index\", \"pid\": %" PRIu64
                ", \"tid\": 0, \"ts\": 0, \"args\": {\"sort_index\": %" PRIu64 "}}",
                pid, place);
    put_line(c);
}

/* ------------------------------------------------------------------------- steps and ranges */

/* Steps of one thread do not overlap there: one ends before the next one begins, by a nanosecond, as readers add numbers of floating point. */
static uint64_t end_of(const struct chrome *c, size_t i)
{
    const struct dmi_step_times *at = &c->times.all[i], *next = at + 1;
    bool cut = i + 1 < c->times.n && next->thread == at->thread && next->begin_ns > at->begin_ns &&
               next->begin_ns <= at->end_ns;
    return cut ? next->begin_ns - 1 : at->end_ns;
}

static void put_step(struct chrome *c, size_t i)
{
    const struct dmi_step_times *at = &c->times.all[i];
    char name[48];
    snprintf(name, sizeof name, "ProfilerStep#%" PRIu64, at->number);
    begin_event(c, "user_annotation", name, strlen(name), c->run->run->pid, at->thread);
    add_times(c, at->begin_ns, end_of(c, i));
    text_printf(&c->line,
                ", \"args\": {\"rows\": %" PRIu32 ", \"requests\": %" PRIu32
                ", \"prefill tokens\": %" PRIu32 ", \"decode tokens\": %" PRIu32
                ", \"device ns\": %" PRIu64 "}}",
                at->rows, at->requests, at->prefill, at->decode, at->device_ns);
    put_line(c);
}

static void take_range(void *ctx, const struct reader_range *range)
{
    struct chrome *c = ctx;
    const struct dmi_range_entry *at = &range->at;
    if (at->end_ns < c->begin_ns || at->begin_ns > c->end_ns)
        return;
    begin_event(c, "cpu_op", range->name, at->name_bytes, c->run->run->pid, at->thread);
    add_times(c, at->begin_ns, at->end_ns);
    text_printf(&c->line, ", \"args\": {\"facts\": ");
    add_name(c, range->facts, at->facts_bytes);
    text_printf(&c->line, "}}");
    put_line(c);
}

/* ------------------------------------------------------------------------- what ran */

/* A kernel's name as people write it, borrowed until the next one. */
static const char *shown_name(struct chrome *c, const struct ran *ran)
{
    struct known_name *at = &c->known[hash_bytes(ran->name, ran->shape.name_bytes) % MOST_NAMES];
    if (at->name && strlen(at->name) == ran->shape.name_bytes &&
        !memcmp(at->name, ran->name, ran->shape.name_bytes))
        return at->shown;
    free(at->name);
    free(at->shown);
    at->name = strndup(ran->name, ran->shape.name_bytes);
    at->shown = at->name ? names_demangled(at->name) : NULL;
    c->error = c->error || at->shown ? c->error : ENOMEM;
    if (!at->shown) {
        free(at->name);
        at->name = NULL;
    }
    return at->shown ? at->shown : "";
}

static void add_sizes(struct text *line, const char *key, const uint32_t size[3])
{
    text_printf(line, ", \"%s\": [%" PRIu32 ", %" PRIu32 ", %" PRIu32 "]", key, size[0], size[1],
                size[2]);
}

/* The call that launched it. A graph's nodes share one. */
static void put_launch(struct chrome *c, const struct ran *ran)
{
    size_t i = 0;
    uint64_t *latest = &c->launched[ran->correlation % MOST_LAUNCHES];
    if (ran->step < DMI_RAN_FIRST || !ran->correlation || *latest == ran->correlation)
        return;
    SEARCH(i, c->times.n, c->times.all[i].number < ran->step - DMI_RAN_FIRST);
    const struct dmi_step_times *at = c->times.all + i;
    if (i == c->times.n || at->number != ran->step - DMI_RAN_FIRST)
        return;
    const char *name = ran->graph                          ? "cudaGraphLaunch"
                       : ran->shape.kind == DMI_RAN_KERNEL ? "cudaLaunchKernel"
                       : ran->shape.kind == DMI_RAN_FILL   ? "cudaMemsetAsync"
                                                           : "cudaMemcpyAsync";
    *latest = ran->correlation;
    begin_event(c, "cuda_runtime", name, strlen(name), c->run->run->pid, at->thread);
    add_times(c, at->begin_ns, at->begin_ns);
    text_printf(&c->line,
                ", \"args\": {\"correlation\": %" PRIu64
                ", \"placed\": \"at the begin of its step: when it was is not known\"}}",
                ran->correlation);
    put_line(c);
}

static void take_ran(void *ctx, const struct ran *ran)
{
    struct chrome *c = ctx;
    const struct dmi_trace_shape *shape = &ran->shape;
    bool kernel = shape->kind == DMI_RAN_KERNEL;
    if (!runs_asked(&c->steps, ran->step))
        return;
    const char *name = kernel ? shown_name(c, ran) : kernels_word(shape);
    const char *site = kernel ? kernels_site(c->run->reader, ran->place) : NULL;
    if (shape->device < MOST_DEVICES)
        c->on_device[shape->device] = true;
    begin_event(c,
                kernel                        ? "kernel"
                : shape->kind == DMI_RAN_FILL ? "gpu_memset"
                                              : "gpu_memcpy",
                name, strlen(name), shape->device, shape->stream);
    add_times(c, ran->begin_ns, ran->end_ns);
    text_printf(&c->line,
                ", \"args\": {\"device\": %" PRIu32 ", \"context\": %" PRIu32
                ", \"stream\": %" PRIu32 ", \"correlation\": %" PRIu64,
                shape->device, shape->context, shape->stream, ran->correlation);
    if (kernel) {
        text_printf(&c->line,
                    ", \"registers per thread\": %" PRIu32 ", \"shared memory\": %" PRIu64,
                    shape->registers, (uint64_t)shape->static_shared + shape->dynamic_shared);
        add_sizes(&c->line, "grid", shape->grid);
        add_sizes(&c->line, "block", shape->block);
    } else {
        text_printf(&c->line, ", \"bytes\": %" PRIu64, ran->bytes);
    }
    if (ran->step >= DMI_RAN_FIRST)
        text_printf(&c->line, ", \"step\": %" PRIu64, ran->step - DMI_RAN_FIRST);
    if (site) {
        text_printf(&c->line, ", \"site\": ");
        add_name(c, site, strlen(site));
    }
    if (site && ran->place.layer)
        text_printf(&c->line, ", \"layer\": %" PRIu64, (uint64_t)ran->place.layer - 1);
    text_printf(&c->line, "}}");
    put_line(c);
    put_launch(c, ran);
}

/* ------------------------------------------------------------------------- the run */

static void put_head(struct chrome *c)
{
    char process[64];
    c->begin_ns = c->times.n ? UINT64_MAX : c->run->run->start_ns;
    for (size_t i = 0; i < c->times.n; i++) {
        const struct dmi_step_times *at = &c->times.all[i];
        c->begin_ns = at->begin_ns < c->begin_ns ? at->begin_ns : c->begin_ns;
        c->end_ns = at->end_ns > c->end_ns ? at->end_ns : c->end_ns;
    }
    c->base_ns = c->begin_ns;
    if (runs_all_asked(&c->steps)) {
        c->begin_ns = 0;
        c->end_ns = UINT64_MAX;
    }
    fprintf(c->to,
            "{\"schemaVersion\": 1, \"displayTimeUnit\": \"ms\", \"baseTimeNanoseconds\": %" PRIu64
            ", \"deviceProperties\": [], \"traceEvents\": [",
            c->base_ns);
    snprintf(process, sizeof process, "process %" PRIu64, c->run->run->pid);
    put_process(c, c->run->run->pid, process, "CPU", c->run->run->pid);
}

static int export_run(const struct trace_run *t, void *ctx)
{
    struct chrome *c = ctx;
    struct err err = { 0 };
    if (!t->traced) {
        complain("%s: the run has no trace; dmi-run --trace makes one", t->run->path);
        c->n_untraced++;
        return 0;
    }
    if (c->n_runs++) {
        complain("export --chrome: of several runs each has a file of its own, as Holistic Trace "
                 "Analysis reads one for each rank: name one run");
        return REPORT_IMPOSSIBLE;
    }
    c->run = t;
    int r = export_steps_of(c->asked, t, &c->steps);
    r = r ? r : runs_times(t, &c->steps, &c->times);
    if (!r)
        put_head(c);
    for (size_t i = 0; !r && i < c->times.n; i++)
        put_step(c, i);
    if (!r && (reader_each_range(&err, t->reader, take_range, c) ||
               reader_each_ran(&err, t->reader, take_ran, c))) {
        complain("%s", err.msg);
        r = REPORT_IMPOSSIBLE;
    }
    for (uint32_t i = 0; i < MOST_DEVICES; i++)
        if (c->on_device[i]) {
            char name[24], label[16];
            snprintf(name, sizeof name, "device %" PRIu32, i);
            snprintf(label, sizeof label, "GPU %" PRIu32, i);
            put_process(c, i, name, label, 5000000 + i);
        }
    fputs("\n]}\n", c->to);
    return r;
}

int trace_export_chrome(char **paths, const char *file, const struct export_asked *asked)
{
    struct chrome c = { .asked = asked };
    _cleanup_(outfile_deinit) struct outfile place = { .fd = -1 };
    c.to = export_file_open(&place, paths, file, "--chrome");
    int r = c.to ? 0 : REPORT_IMPOSSIBLE;
    for (size_t i = 0; !r && paths[i]; i++)
        r = runs_each(paths[i], export_run, &c);
    if (c.to && !r && !c.times.n && !runs_all_asked(&c.steps)) {
        if (!c.n_untraced)
            export_say_none(asked, *paths);
        r = REPORT_IMPOSSIBLE;
    }
    if (c.to && !r && c.n_untraced)
        r = REPORT_IMPOSSIBLE;
    if (c.to)
        r = export_file_close(c.to, c.error, &place, r);
    if (!r)
        printf("%s: %zu steps, %" PRIu64 " events; HTA and TensorBoard read it\n", file, c.times.n,
               c.n_events);
    for (size_t i = 0; i < MOST_NAMES; i++) {
        free(c.known[i].name);
        free(c.known[i].shown);
    }
    runs_times_deinit(&c.times);
    runs_kept_deinit(&c.steps);
    text_deinit(&c.line);
    text_deinit(&c.name);
    return r;
}
