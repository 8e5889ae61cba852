/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/trace_words.h"

#include "core/words.h"

#include <inttypes.h>
#include <stdio.h>

/* "3 steps, 20 ranges and 1 record were lost" */
static void say_lost(const struct trace_marks *m, char out[256])
{
    const struct {
        uint64_t n;
        const char *one, *many;
    } all[] = { { m->n_lost, "step", "steps" },
                { m->n_ranges_lost, "range", "ranges" },
                { m->n_ran_lost, "record of what ran", "records of what ran" },
                { m->n_ran_dropped, "record that CUPTI dropped", "records that CUPTI dropped" } };
    int n = snprintf(out, 256, "the trace is not complete: it lacks");
    bool any = false;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (!all[i].n)
            continue;
        n += snprintf(out + n, 256 - (size_t)n, "%s %" PRIu64 " %s", any ? "," : "", all[i].n,
                      word_for(all[i].n, all[i].one, all[i].many));
        any = true;
    }
}

void trace_words_verdict(const struct trace_account *a, size_t n_damage, enum reader_state state,
                         char out[256])
{
    const char *words = "the trace is complete";
    if (!a->any && !n_damage)
        words = "the run has no trace";
    else if (!a->holds)
        words = "MISMATCH";
    else if (n_damage)
        words = "DAMAGED";
    else if (a->lost_any) {
        say_lost(&a->marks, out);
        return;
    } else if (!a->marks.has_ended)
        words = state == READER_RUNNING
                    ? "the process goes on: what came last is not there yet"
                    : "the process ended without ending its trace: what came last is not known";
    else if (a->n_kernels_unknown) {
        snprintf(out, 256, "all records are there, but %" PRIu64 " %s no known step",
                 a->n_kernels_unknown,
                 word_for(a->n_kernels_unknown, "kernel has", "kernels have"));
        return;
    }
    snprintf(out, 256, "%s", words);
}

void trace_words_wrong(struct report *report, const struct trace_account *a)
{
    for (size_t i = 0; i < TRACE_RULES; i++)
        if (a->wrong[i].n)
            report_line(report, "  wrong: %s: %" PRIu64 ", the first: %s", a->wrong[i].what,
                        a->wrong[i].n, a->wrong[i].first);
}

json_t *trace_words_wrong_rows(const struct trace_account *a)
{
    json_t *rows = json_array();
    for (size_t i = 0; i < TRACE_RULES; i++)
        if (a->wrong[i].n)
            json_array_append_new(rows,
                                  json_pack("{s:s, s:o, s:s}", "what", a->wrong[i].what, "n",
                                            value_u64(a->wrong[i].n), "first", a->wrong[i].first));
    return rows;
}
