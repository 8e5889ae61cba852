/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/control/trace_command.h"

#include "policy/number.h"
#include "preload/trace/keep.h"

#include <inttypes.h>
#include <string.h>

static void say_kept(const struct keep_answer *a, struct text *answer)
{
    text_printf(answer,
                "{\"ok\": true, \"kept\": {\"first\": %" PRIu64 ", \"end\": %" PRIu64
                "}, \"gone\": %" PRIu64 ", \"records\": %" PRIu64 "}\n",
                a->window.first, a->window.end, a->gone, a->records);
}

static void keep(uint64_t n_steps, const struct line_peer *peer, struct text *answer)
{
    struct keep_answer a = keep_ask(n_steps, peer->meanwhile);
    switch (a.state) {
    case KEEP_DONE: say_kept(&a, answer); break;
    case KEEP_OFF:
        line_refuse(answer, "no kernels are in memory: the trace has another tier than kernels, or "
                            "CUPTI cannot be had");
        break;
    case KEEP_BUSY: line_refuse(answer, "another client has asked for steps, and waits"); break;
    case KEEP_LATE:
        line_refuse(answer, "the device is not done with the last step: its steps will be stored "
                            "once it is");
        break;
    case KEEP_ENDS:
        line_refuse(answer, "the process ends: its steps will be stored before it has ended");
        break;
    case KEEP_REFUSED: line_refuse(answer, "the disk has not taken all of them"); break;
    }
}

void trace_command(char *rest, const struct line_peer *peer, struct text *answer)
{
    const char *what = line_word(&rest), *count = line_word(&rest);
    int64_t n = 0;
    bool counts = !*count || (parse_integer(count, &n) && n > 0);
    if (strcmp(what, "keep") || !counts || *line_word(&rest))
        line_refuse(answer, "expected: trace keep, or trace keep N, a number of steps");
    else
        keep((uint64_t)n, peer, answer);
}
