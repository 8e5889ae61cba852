/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes the trace of a run, for tests of dmi-trace: make_trace OUT [JOB RANK RANKS], and on stdin a line each:
 *
 *     step NUMBER
 *     kernel STEP NANOSECONDS NAME     STEP: the number of a step; -: of none that is known
 *     fill STEP NANOSECONDS
 *     alone TEXT                       a mark: steps alone were traced
 */
#include "storage/ran.h"
#include "storage/table.h"
#include "storage/writer/run.h"

#include <dmi/format.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
    struct text steps, marks, texts;
    struct ran_writer ran;
    uint64_t now, n_ran;
} made;

static void add_step(const char *words)
{
    struct dmi_step_times at = { .number = strtoull(words, NULL, 10),
                                 .step = DMI_NO_STEP,
                                 .begin_ns = made.now,
                                 .end_ns = made.now + 1,
                                 .flags = DMI_STEP_NO_LAUNCH,
                                 .source = DMI_STEP_ENGINE };
    text_add(&made.steps, (const char *)&at, sizeof at);
}

static void add_ran(uint32_t kind, char *words)
{
    const char *step = strsep(&words, " "), *ns = strsep(&words, " "), *name = words ? words : "";
    struct ran r = { .shape = { .kind = kind,
                                .registers = 32,
                                .grid = { 1, 1, 1 },
                                .block = { 32, 1, 1 },
                                .name_bytes = (uint32_t)strlen(name) },
                     .name = name,
                     .begin_ns = made.now,
                     .correlation = ++made.n_ran,
                     .step = *step == '-' ? DMI_RAN_UNKNOWN
                                          : DMI_RAN_FIRST + strtoull(step, NULL, 10) };
    r.end_ns = made.now += strtoull(ns, NULL, 10);
    ran_add(&made.ran, &r);
}

static void add_alone(const char *text)
{
    struct dmi_mark at = { .time_ns = made.now,
                           .kind = DMI_MARK_STEPS_ALONE,
                           .text_offset = (uint32_t)made.texts.n,
                           .text_bytes = (uint32_t)strlen(text) };
    text_add(&made.marks, (const char *)&at, sizeof at);
    text_add(&made.texts, text, strlen(text));
}

static int take(char *line)
{
    char *words = line;
    const char *what = strsep(&words, " ");
    if (!words)
        return -1;
    if (!strcmp(what, "step"))
        add_step(words);
    else if (!strcmp(what, "alone"))
        add_alone(words);
    else
        add_ran(strcmp(what, "kernel") ? DMI_RAN_FILL : DMI_RAN_KERNEL, words);
    return 0;
}

static int append(struct run *run, uint16_t type, const struct text *entries, size_t size)
{
    struct text meta = { 0 };
    int r = entries->n ? !table_meta(entries, size, &made.texts, &meta) : 0;
    if (!r && entries->n)
        r = run_append_meta(run, type, &meta);
    text_deinit(&meta);
    return r;
}

static int append_ran(struct run *run)
{
    struct text meta = { 0 };
    int r = 0;
    if (made.ran.n)
        r = ran_meta(&made.ran, &meta) ? run_append_meta(run, DMI_CHUNK_TRACE, &meta) : -1;
    text_deinit(&meta);
    return r;
}

int main(int argc, char **argv)
{
    const bool ranks = argc > 4;
    const struct run_options options = { .out_dir = argc > 1 ? argv[1] : "out",
                                         .job = ranks ? argv[2] : NULL,
                                         .model = "trace",
                                         .spec_text = "" };
    struct err err = { 0 };
    struct run *run;
    char *line = NULL;
    size_t room = 0;
    int r = 0;
    made.now = 1000000000;
    while (!r && getline(&line, &room, stdin) > 0) {
        line[strcspn(line, "\n")] = 0;
        r = take(line);
    }
    free(line);
    if (r || run_open(&err, &options, &run)) {
        fprintf(stderr, "make_trace: %s\n", r ? "a line has no words" : err.msg);
        return 1;
    }
    puts(run_path(run));
    const struct dmi_step step = { .size = sizeof step,
                                   .version = 1,
                                   .span_size = sizeof(struct dmi_span),
                                   .tp_rank = ranks ? atoi(argv[3]) : 0,
                                   .tp_size = ranks ? atoi(argv[4]) : 1 };
    r = run_step(run, 0, &step);
    r |= append(run, DMI_CHUNK_STEP_TIMES, &made.steps, sizeof(struct dmi_step_times));
    r |= append(run, DMI_CHUNK_MARKS, &made.marks, sizeof(struct dmi_mark));
    r |= append_ran(run);
    ran_deinit(&made.ran);
    text_deinit(&made.steps);
    text_deinit(&made.marks);
    text_deinit(&made.texts);
    return run_close(run) || r;
}
